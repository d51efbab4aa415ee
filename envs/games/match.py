"""One game as the arena of games drives it, whoever wrote the game, and what each seat has said and heard in it.

A match of one seat is an ordinary episode. Events come out with slot -1: which slot a seat plays in is the arena's.
Left out: threads, deadlines and slots (`game_arena`).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from palaestra.envs.core.calls import clean
from palaestra.episode import Attempt, Call, Ending, Event, Message, Start, Task

Seat = str | None
"""Who plays; None where there is one seat, which needs no name."""
Events = dict[Seat, Event]
"""What happened: seats that are asked for their turn, or every seat's ending at once."""


class Match(Protocol):
    """A game that is played, and then the next one: `open` begins anew."""

    @property
    def seats(self) -> Sequence[Seat]:
        """Who plays."""

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""

    @property
    def inline(self) -> bool:
        """True when `open` and `act` only compute, so that they need no thread."""

    def open(self, starts: Mapping[Seat, Start]) -> Events:
        """Begin a game; the starts agree in task and seed."""

    def act(self, texts: Mapping[Seat, str]) -> Events:
        """Take turns of seats that were asked. Empty while the game waits for others that were asked."""

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> Events:
        """End the game from outside. The culprit's ending is this one; the others' are not their doing."""

    def close(self) -> None:
        """Release everything."""


class Record:
    """What one seat has heard, said and called."""

    def __init__(self, start: Start, problem: Task, system: str = "") -> None:
        self.start = start
        self.problem = problem
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.calls: list[Call] = []
        self.answer: str | None = None
        self.turns = 0
        self._heard = 0
        self._opened = False

    def hear(self, text: str, role: str = "user", **more: str) -> None:
        """A message to the seat. The start's prefix follows the first one."""
        self.messages.append({"role": role, **more, "content": clean(text)})
        if not self._opened:
            self._opened = True
            self.messages += self.start.prefix

    def say(self, text: str) -> None:
        """A turn of the seat."""
        self.turns += 1
        self.messages.append({"role": "assistant", "content": text})
        self._heard = len(self.messages)

    def news(self) -> tuple[Message, ...]:
        """The messages that are new to the seat."""
        new = tuple(self.messages[self._heard :])
        self._heard = len(self.messages)
        return new

    def unanswered(self) -> tuple[Message, ...]:
        """All that came after its last turn, whether it was news before or not."""
        if not self.turns:
            return tuple(self.messages)
        last = max(place for place, message in enumerate(self.messages) if message["role"] == "assistant")
        return tuple(self.messages[last + 1 :])

    def attempt(self) -> Attempt:
        """What has happened so far. A thread that hangs in the game may still hold the lists: they are copied."""
        return Attempt(self.problem, tuple(self.messages), self.answer, tuple(self.calls), self.turns)


def broken(records: Mapping[Seat, Record], fault: str) -> Events:
    """Every seat BROKEN: a game breaks as a whole, so that all of it can be played again."""
    return {
        seat: Event(-1, record.start, ending=Ending.BROKEN, attempt=record.attempt(), fault=fault)
        for seat, record in records.items()
    }


def blame(seat: Seat, culprit: Seat, ending: Ending, fault: str) -> tuple[Ending, str]:
    """Ending and fault of a seat whose game `culprit` cut short. A seat with a fault is scored, never trained on."""
    if seat == culprit:
        return ending, ""
    return Ending.TURN_LIMIT, fault or f"{culprit} could not go on: {ending}"
