"""ToolVectorEnv: many episodes of one environment at once, as Gymnasium's VectorEnv and as palaestra's Arena.

Nothing resets by itself (`AutoresetMode.DISABLED`): no slot may roll into a task that nobody chose. Left out: how slots
run (`slots`), seats of a game, processes, adapters for foreign environments.

Gymnasium resolves the vector entry point "palaestra.envs.running.vector:ID" with getattr, so this module answers for
every id that `palaestra.register` wrote.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Tuple as TupleSpace
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from palaestra.envs.core.env import ToolEnv, check_options, infos
from palaestra.envs.core.space import TEXT
from palaestra.envs.core.transcript import joined, stack
from palaestra.envs.running.slots import Slots
from palaestra.episode import Ending, Event
from palaestra.errors import Broken, EnvironmentDefect, UsageError
from palaestra.registry import load_author

_MAX_WORKERS = 64


class ToolVectorEnv(Slots, VectorEnv[tuple[str, ...], Sequence[str | None], NDArray[Any]]):
    """`num_envs` episodes of one environment. With `ordered`, `recv` is a barrier that reports in slot order."""

    def __init__(
        self,
        make: Callable[[], ToolEnv],
        num_envs: int,
        *,
        env_id: str = "",
        ordered: bool | None = None,
        max_workers: int | None = None,
    ) -> None:
        """`ordered=None` means True when every tool is inline: then order costs nothing and curves repeat."""
        self.closed = True  # Until all is set up: Gymnasium may call close on a half-made object.
        if num_envs < 1:
            raise UsageError(f"num_envs is {num_envs}; expected at least 1")
        self.num_envs = num_envs
        workers = min(num_envs, _MAX_WORKERS) if max_workers is None else max_workers
        Slots.__init__(self, make, num_envs, env_id, ordered, workers)
        self.render_mode = self.envs[0].render_mode
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = self.single_action_space = TEXT
        self.observation_space = self.action_space = TupleSpace([TEXT] * num_envs)
        self.closed = False

    def close_extras(self, **kwargs: Any) -> None:
        """Discard what runs and release everything; toolkits that hang are left to themselves."""
        self._close_slots()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Open episodes in the slots of `options["reset_mask"]`, or all; on `options["tasks"]` where given."""
        check_options(options, ("reset_mask", "tasks"))
        options = options or {}
        mask = options.get("reset_mask")
        tasks = options.get("tasks")
        seeds = (
            [None if seed is None else seed + slot for slot in range(self.num_envs)]
            if (seed is None or isinstance(seed, int | np.integer))
            else list(seed)
        )
        for name, given in (("seed", seeds), ("tasks", tasks), ("reset_mask", mask)):
            if given is not None and len(given) != self.num_envs:
                raise UsageError(f"reset: {name} has {len(given)} entries; expected one per slot, {self.num_envs}")
        chosen = [slot for slot in range(self.num_envs) if mask is None or mask[slot]]
        for slot in chosen:
            live, given = self._clear(slot), seeds[slot]
            start = self.envs[slot].drawn(None if given is None else int(given), None if tasks is None else tasks[slot])
            self._open(slot, live, start, reseed=False)
        events = self._receive(chosen)
        for event in events:
            if event.ending is not None:
                raise Broken(event.fault)
        return self._texts(events), self._infos(events, opening=True)

    def step(
        self, actions: Sequence[str | None]
    ) -> tuple[tuple[str, ...], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take one turn in every slot; an action of None skips its slot. A BROKEN slot is truncated with reward 0."""
        if actions is None or isinstance(actions, str) or len(actions) != self.num_envs:
            raise UsageError(f"step: expected {self.num_envs} actions, one per slot (None skips a slot)")
        taken = {slot: action for slot, action in enumerate(actions) if action is not None}
        self.send(taken)
        events = self._receive(taken)
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for event in events:
            if event.ending is not None:
                rewards[event.slot] = event.reward or 0.0
                (terminated if event.ending is Ending.ANSWERED else truncated)[event.slot] = True
        return self._texts(events), rewards, terminated, truncated, self._infos(events)

    def render(self) -> tuple[Any, ...] | None:
        """The transcripts of all slots, for "ansi"."""
        return tuple(env.render() for env in self.envs) if self.render_mode == "ansi" else None

    def _receive(self, slots: Iterable[int]) -> list[Event]:
        """Events of all these slots, in ascending order."""
        wanted = set(slots)
        events: list[Event] = []
        while wanted:
            received = self.recv(self.num_envs)
            events += received
            wanted -= {event.slot for event in received}
        return events if self.ordered else sorted(events, key=lambda event: event.slot)

    def _texts(self, events: list[Event]) -> tuple[str, ...]:
        texts = [""] * self.num_envs
        for event in events:
            if event.messages:
                texts[event.slot] = joined(event.messages)
        return tuple(texts)

    def _infos(self, events: list[Event], opening: bool = False) -> dict[str, Any]:
        if not events:
            return {}
        slots = [event.slot for event in events]
        return stack(slots, infos([self.envs[slot] for slot in slots], events, opening), self.num_envs)


def _open_vector(env_id: str, num_envs: int = 1, **kwargs: Any) -> ToolVectorEnv:
    """What `gymnasium.make_vec` calls: `ordered` and `max_workers` are ours, the rest goes to the class."""
    entry_point = gymnasium.spec(env_id).entry_point
    creator = load_author(entry_point, f"{env_id}: its class") if isinstance(entry_point, str) else entry_point
    if not (isinstance(creator, type) and issubclass(creator, ToolEnv)):
        raise EnvironmentDefect(
            f"{env_id} is registered as {entry_point!r}, which is not a subclass of ToolEnv; "
            "palaestra.register takes ToolEnv classes, gymnasium.register all others"
        )
    own = {name: kwargs.pop(name) for name in ("ordered", "max_workers") if name in kwargs}
    return ToolVectorEnv(partial(creator, **kwargs), num_envs, env_id=env_id, **own)


def __getattr__(name: str) -> Any:
    spec: EnvSpec | None = gymnasium.registry.get(name)
    if spec is None or spec.vector_entry_point != f"{__name__}:{name}":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_open_vector, name)
