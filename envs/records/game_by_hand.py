"""One game whose seats are stepped by hand: turns can be taken back, left to the game's own script, and recorded.

With `seat` among the options that seat alone is played, and the script plays the others; the record is of all of them.
Taking a turn back plays the earlier ones again, with their tools (`game_branches`). Left out: asking somebody for turns
and printing (`palaestra play`), and episodes of one seat (`by_hand`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from palaestra import formats
from palaestra.envs.games.game_branches import GameSnapshot
from palaestra.envs.games.match import Events, Seat
from palaestra.envs.games.openers import one_game
from palaestra.envs.games.partners import seat_rng
from palaestra.episode import Ending, Episode, Event, Start
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.record import Record
from palaestra.registry import demonstrator

_MAX_SCRIPTED = 10_000
"""Turns of the script in a row: one that never lets anybody else speak must not hang the table."""


class GameByHand:
    """A game that somebody steps, seat by seat."""

    def __init__(self, env_id: str, options: Mapping[str, Any]) -> None:
        self.env_id = env_id
        self.options = {name: value for name, value in options.items() if name != "seat"}
        self.own: str | None = options.get("seat")
        """The one seat that is played by hand; None for all."""
        _, self.game = one_game(env_id, self.options)
        if self.own is not None and self.own not in self.game.seats:
            raise UsageError(f"seat is {self.own!r}; expected one of {', '.join(map(repr, self.game.seats))}")
        self.asked: dict[Seat, Event] = {}
        """Who is asked, with what is new to each."""
        self.ended: Events = {}
        """How it ended, for every seat."""
        self._starts: dict[Seat, Start] = {}
        self._stands: list[GameSnapshot] = []
        """Where the game stood before each turn by hand."""

    @property
    def seat(self) -> str | None:
        """Whose turn it is; None when the game is over."""
        return next((seat for seat in self.game.seats if seat in self.asked), None)

    @property
    def event(self) -> Event:
        """What the seat at its turn has to go by."""
        if self.seat is None:
            raise UsageError("the game has ended: /undo takes the last turn back, /reset begins another")
        return self.asked[self.seat]

    def open(self, seed: int | None = None, task: int | None = None) -> Start:
        """Begin a game; seed and task are drawn where none are given."""
        drawn = np.random.default_rng(seed)
        index = int(drawn.integers(self.game.task_count)) if task is None else task
        start = Start(index, int(drawn.integers(2**31)) if seed is None else seed)
        self._starts = {name: Start(start.task, start.seed, seat=name) for name in self.game.seats}
        self._stands, self.asked, self.ended = [], {}, {}
        self._take(self.game.open(self._starts))
        return start

    def say(self, text: str) -> None:
        """Take the turn of the seat that is asked."""
        seat = self.event.start.seat
        assert seat is not None
        self._stands.append(self.game.snapshot())
        del self.asked[seat]
        self._take(self.game.act({seat: text}))

    def script(self) -> str:
        """What the game's own script would say now."""
        return self._scripted(self.event)

    def undo(self, count: int = 1) -> None:
        """Take turns by hand back, and what the script answered to them."""
        if not 0 < count <= len(self._stands):
            raise UsageError(f"{count} turns cannot be taken back; {len(self._stands)} have been taken")
        stand = self._stands[-count]
        del self._stands[-count:]
        self.ended = {}
        self.asked = dict(self.game.restore(stand))

    def records(self) -> list[Record]:
        """The episodes of all seats; of a game that is still open as if the seat at its turn had been closed here."""
        ended = self.ended
        if not ended:
            (twin,) = self.game.fork(1, own_noise=False)
            ended = twin.stop(Ending.LENGTH_LIMIT, self.seat)
        return [self._record(seat, ended[seat]) for seat in self.game.seats]

    def _record(self, seat: str, event: Event) -> Record:
        attempt, ending = event.attempt, event.ending
        assert attempt is not None and ending is not None, "an ending carries the attempt"
        tools = self.game.schemas(seat)
        episode = Episode(
            self._starts[seat], attempt, (), ending, event.reward, event.parts, fault=event.fault, tools=tools
        )
        return Record(self.env_id, episode, self.options, agent="by hand")

    def _take(self, events: Events) -> None:
        """Take down what happened, and let the script answer where it plays."""
        for _ in range(_MAX_SCRIPTED):
            if any(event.ending is not None for event in events.values()):
                self.asked, self.ended = {}, events
                return
            self.asked |= events
            other = next((seat for seat in self.asked if self.own is not None and seat != self.own), None)
            if other is None:
                return
            text = self._scripted(self.asked.pop(other))
            events = self.game.act({other: text})
        raise EnvironmentDefect(f"the demonstrator of {self.env_id} speaks on and on; it never ends")

    def _scripted(self, event: Event) -> str:
        seat = event.start.seat
        heard = list(self.game.records[seat].messages)
        said: object = demonstrator(self.env_id)(heard, seat_rng(seat, event.start, len(heard)))
        if not isinstance(said, str):
            raise EnvironmentDefect(f"the demonstrator of {seat} returned {said!r}; expected str")
        return formats.translate(said, self.game.format, event.tools)
