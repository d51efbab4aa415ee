"""One seat of a game as an ordinary episode: the other seats are played by rule, inside.

`palaestra.arena(id, n, seat="solver_0")` opens it, so that whatever plays one agent (training, evaluation, the command
line) can meet a game. Left out: partners that are models; those are seats of their own, each with its engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from palaestra import formats
from palaestra.envs.core.machine import Machine, Reply
from palaestra.envs.core.state import Events, Seat
from palaestra.envs.running.work import Pending
from palaestra.episode import Ending, Event, Message, Start, Task
from palaestra.errors import EnvironmentDefect, UsageError

Rule = Callable[[Sequence[Message], np.random.Generator], str]
_MAX_TURNS = 10_000
"""Turns of rules in a row: one that never ends its turn must not hang the arena."""


class ByRule:
    """One seat is free and `rule` plays the rest. What they say depends on task, seed, seat and turn alone."""

    seats: Sequence[Seat] = (None,)

    def __init__(self, machine: Machine, seat: str, rule: Rule) -> None:
        if seat not in machine.seats:
            raise UsageError(f"seat is {seat!r}; expected one of {', '.join(map(repr, machine.seats))}")
        self.machine, self.seat, self._rule = machine, seat, rule
        self._start = Start(0, 0)
        self._in_row = 0
        self._ended: Events = {}

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""
        return self.machine.task_count

    @property
    def inline(self) -> bool:
        """As the game: a rule only computes."""
        return self.machine.inline

    @property
    def aside(self) -> list[Pending]:
        """Closings that nobody waits for."""
        return self.machine.aside

    def open(self, starts: Mapping[Seat, Start], problem: Task | None = None, slots: Mapping[Seat, int] = {}) -> Reply:
        """Begin a game; only the free seat has the start's prefix."""
        self._start, self._in_row = starts[None], 0
        seated: dict[Seat, Start] = {
            seat: replace(self._start, seat=seat, prefix=self._start.prefix if seat == self.seat else ())
            for seat in self.machine.seats
        }
        places = dict.fromkeys(self.machine.seats, slots.get(None, 0))
        return self._answered(self.machine.open(seated, problem, places))

    def act(self, seat: Seat, text: str) -> Reply:
        """The free seat's turn, and whatever the others say to it."""
        self._in_row = 0
        return self._answered(self.machine.act(self.seat, text))

    def resume(self, pending: Pending) -> Reply:
        """Go on from works that are over or late."""
        return self._answered(self.machine.resume(pending))

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> Reply:
        """End the game from outside."""
        return self._answered(self.machine.stop(ending, self.seat, text, fault))

    def discard(self) -> None:
        """Drop what runs."""
        self.machine.discard()

    def close(self) -> None:
        """Release the game."""
        self.machine.close()

    def _answered(self, reply: Reply) -> Reply:
        """Let the rule answer until the free seat has something to do, or something has to be waited for."""
        mine: Event | None = None
        while not isinstance(reply, Pending):
            mine = reply.get(self.seat, mine)
            if mine is not None and mine.ending is not None:
                break
            others = [seat for seat in self.machine.asked if seat != self.seat]
            if not others:
                break
            self._in_row += 1
            if self._in_row > _MAX_TURNS:
                raise EnvironmentDefect(f"the demonstrator of {others[0]} speaks on and on; it never ends")
            reply = self.machine.act(others[0], spoken(self._rule, self.machine, others[0], self._start))
        if isinstance(reply, Pending):
            return reply
        if mine is None and self.seat in self.machine.asked:  # It was asked before the others had to be waited for.
            mine = self.machine.asked[self.seat]
        return {} if mine is None else {None: replace(mine, start=self._start)}


def spoken(rule: Rule, machine: Machine, seat: Seat, start: Start) -> str:
    """What a rule says for a seat that is asked, written in the format that the game reads."""
    assert machine.state is not None
    heard = machine.state.seats[seat].messages
    text: object = rule(heard.copy(), seat_rng(seat, start, len(heard)))
    if not isinstance(text, str):
        raise EnvironmentDefect(f"the demonstrator of {seat} returned {text!r}; expected str")
    return formats.translate(text, machine.spec.author.format, machine.spec.offers[seat].schemas)


def seat_rng(seat: Seat, start: Start, place: int) -> np.random.Generator:
    """What a rule draws from for a turn: of task, seed, seat and place in the dialogue alone."""
    key = int.from_bytes(blake2b(str(seat).encode(), digest_size=4).digest(), "big")
    return np.random.default_rng([key, start.task, start.seed, place])
