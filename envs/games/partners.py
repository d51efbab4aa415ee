"""One seat of a game as an ordinary episode: the other seats are played by rule, inside.

`palaestra.arena(id, n, seat="solver_0")` opens it, so that whatever plays one agent (training, evaluation, the command
line) can meet a game. Left out: partners that are models; those are seats of their own, each with its engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from palaestra import formats
from palaestra.envs.games.match import Events, Match, Seat
from palaestra.episode import Ending, Message, Start
from palaestra.errors import EnvironmentDefect, UsageError

Rule = Callable[[Sequence[Message], np.random.Generator], str]
_MAX_TURNS = 10_000
"""Turns of partners in a row: a rule that never ends its turn must not hang the arena."""


class Partnered:
    """One seat is free and `rule` plays the rest. What they say depends on task, seed, seat and turn alone.

    A rule writes its calls as hermes; the game hears them in the `format` that it reads.
    """

    def __init__(self, match: Match, seat: str, rule: Rule, format: str = formats.DEFAULT) -> None:
        if seat not in match.seats:
            raise UsageError(f"seat is {seat!r}; expected one of {', '.join(map(repr, match.seats))}")
        self._match, self.seat, self._rule, self._format = match, seat, rule, format
        self._start = Start(0, 0)
        self._heard: dict[Seat, list[Message]] = {}

    @property
    def seats(self) -> Sequence[Seat]:
        """One seat, which needs no name."""
        return (None,)

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""
        return self._match.task_count

    @property
    def inline(self) -> bool:
        """As the game: a rule only computes."""
        return self._match.inline

    def open(self, starts: Mapping[Seat, Start]) -> Events:
        """Begin a game; only the free seat has the start's prefix."""
        self._start = starts[None]
        self._heard = {seat: [] for seat in self._match.seats}
        seated = {seat: replace(self._start, seat=seat, prefix=()) for seat in self._match.seats}
        seated[self.seat] = replace(self._start, seat=self.seat)
        return self._answered(self._match.open(seated))

    def act(self, texts: Mapping[Seat, str]) -> Events:
        """The free seat's turn, and whatever the others say to it."""
        return self._answered(self._match.act({self.seat: texts[None]}))

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> Events:
        """End the game from outside."""
        return self._mine(self._match.stop(ending, self.seat, text, fault))

    def close(self) -> None:
        """Release the game."""
        self._match.close()

    def _answered(self, events: Events) -> Events:
        """Let the rule answer until the free seat has something to do."""
        mine: Events = {}
        for _ in range(_MAX_TURNS):
            if self.seat in events:
                mine = {self.seat: events[self.seat]}
            asked = {seat: event for seat, event in events.items() if seat != self.seat and event.ending is None}
            if not asked:
                return self._mine(mine)
            texts: dict[Seat, str] = {}
            for seat, event in asked.items():
                heard = self._heard[seat]
                heard += event.messages
                text: object = self._rule(heard, seat_rng(seat, self._start, len(heard)))
                if not isinstance(text, str):
                    raise EnvironmentDefect(f"the demonstrator of {seat} returned {text!r}; expected str")
                texts[seat] = text = formats.translate(text, self._format, event.tools)
                heard.append({"role": "assistant", "content": text})
            events = self._match.act(texts)
        raise EnvironmentDefect(f"the demonstrator of {', '.join(map(str, asked))} speaks on and on; it never ends")

    def _mine(self, events: Events) -> Events:
        return {None: events[self.seat]} if self.seat in events else {}


def seat_rng(seat: Seat, start: Start, place: int) -> np.random.Generator:
    """What a rule draws from for a turn: of task, seed, seat and place in the dialogue alone."""
    key = int.from_bytes(blake2b(str(seat).encode(), digest_size=4).digest(), "big")
    return np.random.default_rng([key, start.task, start.seed, place])
