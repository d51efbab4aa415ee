"""Snapshots of an episode between two turns, and branches that go on from one.

A snapshot holds all that an episode has changed: its messages and calls, the generator, what tools have set on `self`,
and the state of every toolkit. It is copied deeply when it is taken and when it is restored, in one piece, so that
branches share nothing and objects that were one (a generator that a tool keeps) stay one. Not part of it: the task set,
and attributes that the class names in `shared`.

Left out: opening a slot of a vector environment from a snapshot, and choosing where to branch.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from palaestra.envs.core.toolkit import Toolkit, close_all
from palaestra.episode import Event, Message
from palaestra.errors import Broken, UsageError

if TYPE_CHECKING:
    from palaestra.envs.core.env import ToolEnv

Env = TypeVar("Env", bound="ToolEnv")
_KEPT = frozenset(
    {"slot", "closes_toolkits", "spec", "split", "render_mode", "tasks_file", "format", "toolkits", "_set"}
)
"""Attributes that say which environment this is, not where its episode stands."""


class _StandIn:
    """Stands for the environment or a toolkit wherever the copied state refers to it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """An episode as it stood at one turn. It never changes, and may be restored any number of times."""

    env_class: type
    turns: int
    _state: tuple[Mapping[str, Any], tuple[Any, ...]]
    """Attributes, and states of the toolkits."""
    _stand_ins: tuple[_StandIn, ...]
    """For the environment, then for each toolkit."""
    _atoms: tuple[Any, ...]
    """What nobody changes (the task, calls, tools), and need not be copied."""

    def __repr__(self) -> str:
        return f"<Snapshot of {self.env_class.__name__} after {self.turns} turns>"


def refusal(env: "ToolEnv") -> str:
    """Why this environment has no snapshots: a toolkit that cannot; "" where it has."""
    for kit in env.toolkits if env._kits is None else [type(kit) for kit in env._kits]:
        if getattr(kit, "snapshot", None) is Toolkit.snapshot or getattr(kit, "restore", None) is Toolkit.restore:
            name = getattr(kit, "__name__", kit)
            return (
                f"{type(env).__name__} has no snapshots: its toolkit {name} does not support them; "
                f"write snapshot(self) and restore(self, state) in {name}"
            )
    return ""


def take(env: "ToolEnv") -> Snapshot:
    """A snapshot of the running episode, between two turns."""
    env._require_open("snapshot")
    if env._turns and env._messages[-1]["role"] == "assistant":
        raise UsageError("snapshot in the middle of a turn; take it before a turn or after its results")
    said = refusal(env)
    if said:
        raise UsageError(said)
    kits = env._kits or ()
    if len(kits) != len(env.toolkits):
        raise UsageError("snapshot of an episode that is led by recorded outcomes: its toolkits hold nothing")
    kept = _kept(env)
    attributes = {name: value for name, value in vars(env).items() if name not in kept}
    stand_ins = tuple(_StandIn() for _ in (env, *kits))
    tools = [*env._tools.values(), *env._table.values(), *env._hidden.values(), *env._found.values()]
    atoms = (env.problem, env._start, *env._calls, *tools)
    memo = {id(one): stand_in for one, stand_in in zip((env, *kits), stand_ins, strict=True)} | _themselves(atoms)
    states = tuple(kit.snapshot() for kit in kits)
    try:
        state = copy.deepcopy((attributes, states), dict(memo))
    except Exception as error:
        raise UsageError(_culprit(env, attributes, states, memo, error)) from error
    return Snapshot(type(env), env.turns, state, stand_ins, atoms)


def put(env: "ToolEnv", snapshot: Snapshot) -> Event:
    """Let the environment stand where the snapshot was taken; an episode that runs is discarded."""
    if not isinstance(snapshot, Snapshot) or snapshot.env_class is not type(env):
        raise UsageError(f"restore: found {snapshot!r}; expected a Snapshot of {type(env).__name__}")
    env.discard()
    kits: tuple[Toolkit, ...] = ()
    try:
        kits = tuple(make() for make in env.toolkits) if env._kits is None else env._kits
        memo: dict[int, Any] = {
            id(stand_in): one for stand_in, one in zip(snapshot._stand_ins, (env, *kits), strict=True)
        }
        attributes, states = copy.deepcopy(snapshot._state, memo | _themselves(snapshot._atoms))
        for kit, state in zip(kits, states, strict=True):
            kit.restore(state)
    except Exception as error:  # As where an episode begins: the agent has not acted since.
        close_all(kits)
        raise Broken(f"{env._where()}: the snapshot was not restored: {type(error).__name__}: {error}") from error
    for name in vars(env).keys() - _kept(env):
        delattr(env, name)
    vars(env).update(attributes)
    return env._event(tuple(_new(env._messages, env.turns)))


def fork(env: Env, count: int, own_noise: bool) -> list[Env]:
    """Environments of their own that stand where this one stands."""
    if count < 1:
        raise UsageError(f"fork({count}); expected at least 1")
    snapshot = take(env)
    children: list[Env] = []
    for index in range(count):
        child: Env = object.__new__(type(env))
        vars(child).update({name: value for name, value in vars(env).items() if name in _kept(env)})
        child.closes_toolkits = True
        try:
            put(child, snapshot)
        except BaseException:  # Whatever it is, an interrupt too, the children made so far hold toolkits.
            for other in children:
                other.discard()
            raise
        if own_noise:
            _reseed(child, index)
        children.append(child)
    return children


def _reseed(child: "ToolEnv", index: int) -> None:
    """Give a branch a seed of its own, drawn from where its parent's generator stands.

    The generator is changed in place, for tools and toolkits may hold it.
    """
    assert child._start is not None
    generator = child.np_random
    drawn = generator.integers(2**32, size=2)
    (seed,) = np.random.SeedSequence([*map(int, drawn), child.turns, index]).generate_state(1) >> 1
    bits = generator.bit_generator
    bits.state = type(bits)(int(seed)).state
    child._start = replace(child._start, seed=int(seed))


def _kept(env: "ToolEnv") -> frozenset[str]:
    return _KEPT.union(env.shared)


def _themselves(atoms: Iterable[Any]) -> dict[int, Any]:
    """What tells deepcopy to leave these as they are."""
    return {id(atom): atom for atom in atoms}


def _new(messages: Sequence[Message], turns: int) -> Sequence[Message]:
    """What the agent has not seen yet: all at the start, later what came after its last turn."""
    if not turns:
        return messages
    last = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
    return messages[last + 1 :]


def _culprit(
    env: "ToolEnv", attributes: Mapping[str, Any], states: Sequence[Any], memo: Mapping[int, Any], error: Exception
) -> str:
    """Which attribute or toolkit cannot be copied, and what to do."""
    kits = [(type(kit).__name__, state) for kit, state in zip(env._kits or (), states, strict=True)]
    for name, value in [*attributes.items(), *kits]:
        try:
            copy.deepcopy(value, dict(memo))
        except Exception as found:
            said = f"{type(env).__name__} has no snapshots: {{}} ({type(value).__name__}) cannot be copied ({found}); "
            if name in attributes:
                return said.format(f"self.{name}") + f"name {name!r} in its `shared` if it belongs to no episode"
            return said.format(f"the state of its toolkit {name}") + "what it stands for needs a __deepcopy__"
    return f"{type(env).__name__} has no snapshots: {error}"
