"""Snapshots of an episode between two turns, and branches that go on from one, of one seat or of several.

A snapshot holds all that an episode has changed: messages and calls, generators, what tools have set on `self`, and the
state of every toolkit. It is copied deeply when it is taken and when it is restored, in one piece, so that branches
share nothing and objects that were one (a generator that a tool keeps) stay one. Not part of it: what a constructor has
set, which all episodes share. The rounds of a game are told again what was said (`course`); no tool runs twice.

Left out: choosing where to branch.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from palaestra.envs.core.course import Course
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Dialogue, Events, Seat, State, episode_of
from palaestra.envs.core.toolkit import Toolkit
from palaestra.episode import Task
from palaestra.errors import Broken, UsageError


class _StandIn:
    """Stands for the episode's object or a toolkit wherever the copied state refers to it."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """An episode as it stood between two turns. It never changes, and may be restored any number of times."""

    author: type
    """The class of what is played."""
    problem: Task
    seed: int
    seats: Mapping[Seat, Dialogue]
    course: Course | None
    _copied: tuple[Mapping[str, Any], tuple[Any, ...]]
    """What tools set on `self`, and states of the toolkits."""
    _stand_ins: tuple[_StandIn, ...]
    """For the episode's object, then for each toolkit."""

    @property
    def turns(self) -> int:
        """Turns of all seats before it."""
        return sum(one.turns for one in self.seats.values())

    def __repr__(self) -> str:
        return f"<Snapshot of {self.author.__name__} after {self.turns} turns>"


def take(machine: Machine) -> Snapshot:
    """A snapshot of the running episode, between two turns."""
    state, name = machine.state, machine.spec.owner
    if state is None or state.endings is not None:
        raise UsageError(f"snapshot: no episode of {name} runs; call reset (or open) first")
    if state.out:
        raise UsageError("snapshot in the middle of a turn; take it before a turn or after its results")
    kits = [kit for _, kit in machine.kits.made or ()]
    _require_snapshots(name, kits)
    changed = _changed(machine, state)
    stand_ins = tuple(_StandIn() for _ in (state.play, *kits))
    memo: dict[int, Any] = {id(one): other for one, other in zip((state.play, *kits), stand_ins, strict=True)}
    memo |= _themselves(machine, state.problem)
    states = tuple(kit.snapshot() for kit in kits)
    try:
        copied = copy.deepcopy((changed, states), dict(memo))
    except Exception as error:
        raise UsageError(_culprit(name, changed, kits, states, memo, error)) from error
    seats = {seat: one.copied() for seat, one in state.seats.items()}
    course = None if state.course is None else state.course.kept()
    return Snapshot(type(machine.spec.author), state.problem, state.seed, seats, course, copied, stand_ins)


def put(machine: Machine, snapshot: Snapshot) -> Events:
    """Let the machine stand where the snapshot was taken; an episode that runs is discarded. Returns who is asked."""
    if not isinstance(snapshot, Snapshot) or snapshot.author is not type(machine.spec.author):
        raise UsageError(f"restore: found {snapshot!r}; expected a Snapshot of {machine.spec.owner}")
    machine.discard()
    play = episode_of(machine.spec.author, snapshot.problem, snapshot.seed)
    course = None
    if snapshot.course is not None:
        start = next(iter(snapshot.seats.values())).start
        course = snapshot.course.told_again(play, snapshot.seed, start.task)
    try:
        kits = [kit for _, kit in machine.kits.make()]
        memo: dict[int, Any] = {id(other): one for one, other in zip((play, *kits), snapshot._stand_ins, strict=True)}
        memo |= _themselves(machine, snapshot.problem)
        changed, states = copy.deepcopy(snapshot._copied, memo)
        for kit, state in zip(kits, states, strict=True):
            kit.restore(state)
    except Exception as error:  # As where an episode begins: the agent has not acted since.
        machine.give_kits_up(in_use=False)
        raise Broken(f"{machine.spec.name}: the snapshot was not restored: {type(error).__name__}: {error}") from error
    vars(play).update(changed)
    seats = {seat: one.copied() for seat, one in snapshot.seats.items()}
    machine.state = State(snapshot.problem, snapshot.seed, play, seats)
    machine.state.course, machine.state.owners = course, machine.kits.owners()
    return machine.asked


def fork(machine: Machine, count: int, own_noise: bool = True) -> list[Machine]:
    """Machines of their own that stand where this one stands; with `own_noise` each has randomness of its own."""
    if count < 1:
        raise UsageError(f"fork({count}); expected at least 1")
    snapshot = take(machine)
    children: list[Machine] = []
    try:
        for index in range(count):
            child = Machine(machine.spec)
            children.append(child)
            put(child, snapshot)
            if own_noise:
                _reseed(child, index, snapshot.turns)
    except BaseException:  # Whatever it is, an interrupt too, the children made so far hold toolkits.
        for child in children:
            child.discard()
            machine.aside += child.aside  # Whoever drives this one closes them.
        raise
    return children


def _reseed(child: Machine, index: int, turns: int) -> None:
    """Give a branch a seed of its own, drawn from where its parent's generator stands.

    Generators are changed in place, for tools, toolkits and rounds may hold them.
    """
    state = child.state
    assert state is not None
    drawn = copy.deepcopy(state.play.rng if state.course is None else state.course.rng).integers(2**32, size=2)
    (seed,) = map(int, np.random.SeedSequence([*map(int, drawn), turns, index]).generate_state(1) >> 1)
    bits = state.play.rng.bit_generator
    bits.state = type(bits)(seed).state
    if state.course is not None:
        state.course.reseed(seed)
        return
    state.seed = seed
    for one in state.seats.values():
        one.start = replace(one.start, seed=seed)


def _changed(machine: Machine, state: State) -> Mapping[str, Any]:
    """What the episode has set on its object, beside what the constructor had."""
    author = vars(machine.spec.author)
    return {
        name: value
        for name, value in vars(state.play).items()
        if name != "problem" and not (name in author and author[name] is value)
    }


def _themselves(machine: Machine, problem: Task) -> dict[int, Any]:
    """What nobody changes, or all episodes share: told to deepcopy, which leaves it as it is."""
    return {id(one): one for one in (problem, machine.spec.author, *vars(machine.spec.author).values())}


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
    """Which attribute or toolkit cannot be copied, and what to do."""
    named = [(type(kit).__name__, state) for kit, state in zip(kits, states, strict=True)]
    for at, (attribute, value) in enumerate([*changed.items(), *named]):
        try:
            copy.deepcopy(value, dict(memo))
        except Exception as found:
            if at < len(changed):
                what, fix = f"self.{attribute}", "set it in __init__ if it belongs to no episode"
            else:
                what, fix = f"the state of its toolkit {attribute}", "what it stands for needs a __deepcopy__"
            return f"{name} has no snapshots: {what} ({type(value).__name__}) cannot be copied ({found}); {fix}"
    return f"{name} has no snapshots: {error}"
