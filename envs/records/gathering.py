"""Recorded episodes that belong together: one episode, or all seats of a game, and the machines to run them again.

Seats are recorded as episodes of their own, and only together are they a game: what one hears is what another has said,
and who is rewarded the rounds decide. Left out: running them (`replay`), and finding files (the command line).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.envs.arena.opening import open_machine
from palaestra.envs.core.declared import WHOLE
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Seat
from palaestra.envs.records.replay import Difference, replay
from palaestra.episode import Episode
from palaestra.plain import to_plain
from palaestra.record import Record
from palaestra.registry import author_class, demonstrator, is_game

Placed = tuple[str, Record]
"""A record, with the words that name its place."""


class Gathering:
    """Records, handed out game by game once all seats are there; an episode of one seat at once."""

    def __init__(self) -> None:
        self._open: dict[str, list[dict[Seat, Placed]]] = {}

    def add(self, source: str, place: str, record: Record) -> list[Placed] | None:
        """A whole game, where this record was its last seat. Games are never made of several sources."""
        if "seat" in record.options or not is_game(record.env_id):
            return [(place, record)]
        start, seats = record.episode.start, author_class(record.env_id).seats
        key = f"{source} {record.env_id} {to_plain(dict(record.options))!r} {start.task} {start.seed}"
        games = self._open.setdefault(key, [])
        game = next((one for one in games if start.seat not in one), None)
        if game is None:
            game = {}
            games.append(game)
        game[start.seat] = (place, record)
        if set(game) != set(seats):
            return None
        games.remove(game)
        if not games:
            del self._open[key]
        return [game[seat] for seat in seats]

    @property
    def incomplete(self) -> list[Placed]:
        """The records whose games lack a seat."""
        return [placed for games in self._open.values() for game in games for placed in game.values()]


class Stage:
    """Machines to replay in, one for each id and its options, made when first needed."""

    def __init__(self) -> None:
        self._made: dict[str, Machine] = {}

    def machine(self, env_id: str, options: Mapping[str, Any]) -> Machine:
        """What plays that id. No file of tasks is needed, for a record holds its own task."""
        left_out = {"tasks", "seat"} | ({"split"} if options.get("split") == WHOLE else set())
        given = {name: value for name, value in options.items() if name not in left_out}
        key = f"{env_id} {to_plain(given)!r}"
        if key not in self._made:
            self._made[key] = open_machine(env_id, given)
        return self._made[key]

    def replay(self, whole: Sequence[Record]) -> Difference | None:
        """Run an episode again, or all seats of a game; the first difference to its record."""
        env_id, options = whole[0].env_id, whole[0].options
        rule = demonstrator(env_id) if options.get("seat") is not None else None
        return replay(self.machine(env_id, options), episodes_of(whole), rule)


def episodes_of(whole: Sequence[Record]) -> dict[Seat, Episode]:
    return {one.episode.attempt.seat: one.episode for one in whole}
