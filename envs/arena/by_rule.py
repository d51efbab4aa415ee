"""One seat of a game as an episode of its own: a rule, the game's demonstrator, plays the other seats.

`palaestra.arena(id, n, seat="solver_0")` opens it, so that training, evaluation and the command line, which all play
one agent, can play a game. Left out: models in the other seats; they play in slots of their own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from palaestra import formats
from palaestra.authorship import function_name
from palaestra.envs.core.machine import Machine, MachineReply
from palaestra.envs.core.state import Events, Seat
from palaestra.envs.running.work import Pending
from palaestra.episode import Ending, Event, Message, Start, Task
from palaestra.errors import EnvironmentDefect, UsageError

SeatRule = Callable[[Sequence[Message], np.random.Generator], str]
_MAX_TURNS = 10_000
"""Maximum number of the rule's turns in a row: a rule that never ends its turn must not hang the arena."""


class ByRule:
    """Machine with one free seat; `rule` plays the others. Its random numbers depend only on task, seed, seat and the
    number of messages."""

    seats: Sequence[Seat] = (None,)

    def __init__(self, machine: Machine, seat: str, rule: SeatRule) -> None:
        if seat not in machine.seats:
            raise UsageError(f"seat is {seat!r}; expected one of {', '.join(map(repr, machine.seats))}")
        self.machine, self.seat, self._rule = machine, seat, rule
        self.inline, self.aside = machine.inline, machine.aside
        self._start = Start(0, 0)
        self._in_row = 0
        self._ended: Events = {}

    @property
    def task_count(self) -> int:
        """Number of tasks that a Start may index."""
        return self.machine.task_count

    def open(
        self, starts: Mapping[Seat, Start], problem: Task | None = None, slots: Mapping[Seat, int] = {}
    ) -> MachineReply:
        """Begin a game; only the free seat has the start's prefix."""
        self._start, self._in_row = starts[None], 0
        seated: dict[Seat, Start] = {
            seat: replace(self._start, seat=seat, prefix=self._start.prefix if seat == self.seat else ())
            for seat in self.machine.seats
        }
        places = dict.fromkeys(self.machine.seats, slots.get(None, 0))
        return self._answered(self.machine.open(seated, problem, places))

    def act(self, seat: Seat, text: str) -> MachineReply:
        """Take the free seat's turn, then the rule's turns for other seats, until it is the free seat's turn again."""
        self._in_row = 0
        return self._answered(self.machine.act(self.seat, text))

    def resume(self, pending: Pending) -> MachineReply:
        """Continue the game after these jobs have finished or timed out."""
        return self._answered(self.machine.resume(pending))

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> MachineReply:
        """End the game from outside."""
        return self._answered(self.machine.stop(ending, self.seat, text, fault))

    def discard(self) -> None:
        """Drop the running game."""
        self.machine.discard()

    def close(self) -> None:
        """Release the game."""
        self.machine.close()

    def _answered(self, reply: MachineReply) -> MachineReply:
        """Let the rule play until it is the free seat's turn, the game ends, or a job must be awaited."""
        seat_event: Event | None = None
        while not isinstance(reply, Pending):
            seat_event = reply.get(self.seat, seat_event)
            if seat_event is not None and seat_event.ending is not None:
                break
            others = [seat for seat in self.machine.pending_events if seat != self.seat]
            if not others:
                break
            self._in_row += 1
            if self._in_row > _MAX_TURNS:
                raise EnvironmentDefect(f"the demonstrator of {others[0]} speaks on and on; it never ends")
            reply = self.machine.act(others[0], spoken(self._rule, self.machine, others[0], self._start))
        if isinstance(reply, Pending):
            return reply
        if seat_event is None:  # Its event came before the wait for the others.
            seat_event = self.machine.pending_events.get(self.seat)
        return {} if seat_event is None else {None: replace(seat_event, start=self._start)}


def spoken(rule: SeatRule, machine: Machine, seat: Seat, start: Start) -> str:
    """Return the turn of a rule for a seat whose turn it is, in the format that the game reads."""
    assert machine.state is not None
    messages = machine.state.seats[seat].messages
    text: object = rule(messages.copy(), seat_rng(seat, start, len(messages)))
    if not isinstance(text, str):
        raise EnvironmentDefect(f"{function_name(rule)} returned {text!r}; expected str, the agent's whole turn")
    return formats.translate(text, machine.spec.author.format, machine.spec.offers[seat].schemas)


def seat_rng(seat: Seat, start: Start, place: int) -> np.random.Generator:
    """Return the random generator of a rule's turn. It depends only on task, seed, seat and `place`, the number of
    messages."""
    key = int.from_bytes(blake2b(str(seat).encode(), digest_size=4).digest(), "big")
    return np.random.default_rng([key, start.task, start.seed, place])
