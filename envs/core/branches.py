"""Snapshots of an episode between two turns, and branches that continue from a snapshot, with one seat or several.

A snapshot holds all that an episode has changed: messages and calls, random generators, attributes that tools set on
`self`, and the state of every toolkit. It is copied deeply as a whole when it is taken and when it is restored. So
branches share nothing, and two references to one object (such as a generator that a tool keeps) still refer to one
object. It does not hold what a constructor set, because all episodes share that. The rounds of a game are run again
with the recorded replies (`course`); no tool runs twice.

Left out: choosing where to branch.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from palaestra.envs.core.course import Course
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Dialogue, EpisodeState, Events, Seat, episode_of
from palaestra.envs.core.toolkit import Toolkit
from palaestra.episode import Task
from palaestra.errors import Broken, UsageError


class _StandIn:
    """Placeholder in the copied state for the episode's object or for a toolkit."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """An episode as it was between two turns. It never changes, and may be restored any number of times."""

    author: type
    """Class of the environment."""
    problem: Task
    seed: int
    seats: Mapping[Seat, Dialogue]
    course: Course | None
    _copied: tuple[Mapping[str, Any], tuple[Any, ...]]
    """Attributes that tools set on `self`, and states of the toolkits."""
    _stand_ins: tuple[_StandIn, ...]
    """Placeholders for the episode's object, then for each toolkit."""

    @property
    def turns(self) -> int:
        """Number of turns of all seats before the snapshot."""
        return sum(dialogue.turns for dialogue in self.seats.values())

    def __repr__(self) -> str:
        return f"<Snapshot of {self.author.__name__} after {self.turns} turns>"


def take(machine: Machine) -> Snapshot:
    """Return a snapshot of the running episode; raise UsageError in the middle of a turn, or if it cannot be copied."""
    state, name = machine.state, machine.spec.owner
    if state is None or state.endings is not None:
        raise UsageError(f"snapshot: no episode of {name} runs; call reset (or open) first")
    if state.out:
        raise UsageError("snapshot in the middle of a turn; take it before a turn or after its results")
    if type(machine) is not Machine:
        raise UsageError(f"{name} is a harness: its program cannot be copied, so there is no snapshot of it")
    kits = [kit for _, kit in machine.kits.instances or ()]
    _require_snapshots(name, kits)
    changed = _changed(machine, state)
    stand_ins = tuple(_StandIn() for _ in (state.play, *kits))
    memo: dict[int, Any] = {
        id(original): stand_in for original, stand_in in zip((state.play, *kits), stand_ins, strict=True)
    }
    memo |= _themselves(machine, state.problem)
    states = tuple(kit.snapshot() for kit in kits)
    try:
        copied = copy.deepcopy((changed, states), dict(memo))
    except Exception as error:
        raise UsageError(_culprit(name, changed, kits, states, memo, error)) from error
    seats = {seat: original.copied() for seat, original in state.seats.items()}
    course = None if state.course is None else state.course.record()
    return Snapshot(type(machine.spec.author), state.problem, state.seed, seats, course, copied, stand_ins)


def put(machine: Machine, snapshot: Snapshot) -> Events:
    """Discard the machine's episode, restore a snapshot, and return the events of the seats whose turn it is."""
    if not isinstance(snapshot, Snapshot) or snapshot.author is not type(machine.spec.author):
        raise UsageError(f"restore: found {snapshot!r}; expected a Snapshot of {machine.spec.owner}")
    machine.discard()
    play = episode_of(machine.spec.author, snapshot.problem, snapshot.seed)
    course = None
    if snapshot.course is not None:
        start = next(iter(snapshot.seats.values())).start
        course = snapshot.course.replayed(play, snapshot.seed, start.task)
    try:
        kits = [kit for _, kit in machine.kits.make()]
        memo: dict[int, Any] = {
            id(stand_in): original for original, stand_in in zip((play, *kits), snapshot._stand_ins, strict=True)
        }
        memo |= _themselves(machine, snapshot.problem)
        changed, states = copy.deepcopy(snapshot._copied, memo)
        for kit, state in zip(kits, states, strict=True):
            kit.restore(state)
    except Exception as error:  # As at the start of an episode: the agent is not to blame, since it has not acted yet.
        machine.aside += machine.kits.give_up(in_use=False)
        raise Broken(f"{machine.spec.name}: the snapshot was not restored: {type(error).__name__}: {error}") from error
    vars(play).update(changed)
    seats = {seat: original.copied() for seat, original in snapshot.seats.items()}
    machine.state = EpisodeState(machine.spec.name, snapshot.problem, snapshot.seed, play, seats)
    machine.state.course, machine.state.owners = course, machine.kits.owners()
    return machine.pending_events


def fork(machine: Machine, count: int, own_noise: bool = True) -> list[Machine]:
    """Return `count` new machines with copies of this one's episode; `own_noise` gives each its own random stream."""
    if count < 1:
        raise UsageError(f"fork({count}); expected at least 1")
    snapshot = take(machine)
    children: list[Machine] = []
    try:
        for index in range(count):
            child = type(machine)(machine.spec)
            children.append(child)
            put(child, snapshot)
            if own_noise:
                _reseed(child, index, snapshot.turns)
    except BaseException:  # After any error or interrupt: the children made so far hold toolkits.
        for child in children:
            child.discard()
            machine.aside += child.aside  # The driver of the parent closes them.
        raise
    return children


def _reseed(child: Machine, index: int, turns: int) -> None:
    """Give a branch its own seed, drawn from the present state of its parent's generator.

    Generators are changed in place, because tools, toolkits and rounds may hold them.
    """
    state = child.state
    assert state is not None
    entropy = copy.deepcopy(state.play.rng if state.course is None else state.course.rng).integers(2**32, size=2)
    (seed,) = map(int, np.random.SeedSequence([*map(int, entropy), turns, index]).generate_state(1) >> 1)
    bits = state.play.rng.bit_generator
    bits.state = type(bits)(seed).state
    if state.course is not None:
        state.course.reseed(seed)
        return
    state.seed = seed
    for dialogue in state.seats.values():
        dialogue.start = replace(dialogue.start, seed=seed)


def _changed(machine: Machine, state: EpisodeState) -> Mapping[str, Any]:
    """Return the attributes that the episode has set on its object, without those that the constructor set."""
    author = vars(machine.spec.author)
    return {
        name: value
        for name, value in vars(state.play).items()
        if name != "problem" and not (name in author and author[name] is value)
    }


def _themselves(machine: Machine, problem: Task) -> dict[int, Any]:
    """Return a memo with which deepcopy does not copy the problem, nor the objects that all episodes share."""
    return {id(shared): shared for shared in (problem, machine.spec.author, *vars(machine.spec.author).values())}


def _require_snapshots(name: str, kits: Iterable[Toolkit]) -> None:
    for kit in kits:
        kind = type(kit)
        if kind.snapshot is Toolkit.snapshot or kind.restore is Toolkit.restore:
            raise UsageError(
                f"{name} has no snapshots: its toolkit {kind.__name__} does not support them; "
                f"write snapshot(self) and restore(self, state) in {kind.__name__}"
            )


def _culprit(
    name: str, changed: Mapping[str, Any], kits: Sequence[Toolkit], states: Sequence[Any], memo: Any, error: Exception
) -> str:
    """Return an error text that names the attribute or toolkit that cannot be copied, and the fix."""
    toolkit_states = [(type(kit).__name__, state) for kit, state in zip(kits, states, strict=True)]
    for at, (attribute, value) in enumerate([*changed.items(), *toolkit_states]):
        try:
            copy.deepcopy(value, dict(memo))
        except Exception as copy_error:
            if at < len(changed):
                what, fix = f"self.{attribute}", "set it in __init__ if it belongs to no episode"
            else:
                what, fix = f"the state of its toolkit {attribute}", "what it stands for needs a __deepcopy__"
            return f"{name} has no snapshots: {what} ({type(value).__name__}) cannot be copied ({copy_error}); {fix}"
    return f"{name} has no snapshots: {error}"
