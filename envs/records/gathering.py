"""Records that belong together (one episode, or all seats of a game), and the machines to run them again.

Each seat of a game has its own record. A game can be run only with all of them, because seats read each other's turns,
and the rounds decide the rewards. If a record names a service (`palaestra.options`), the service is used only if the
caller names it too. Left out: running the records (`replay`), and finding files (the command line).
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.envs.arena.opening import open_machine
from palaestra.envs.core.declared import WHOLE
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Seat
from palaestra.envs.records.replay import Difference, replay
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.plain import as_pair, to_plain
from palaestra.record import Record
from palaestra.registry import author_class, check_options, demonstrator, is_game, require_loaded, services

Placed = tuple[str, Record]
"""A record, with the text that names its place (file and line)."""


class GameCollector:
    """Collector that groups the records of seats into games; an episode of one seat is complete at once."""

    def __init__(self) -> None:
        self._open: dict[str, list[dict[Seat, Placed]]] = {}

    def add(self, source: str, place: str, record: Record) -> list[Placed] | None:
        """Add a record. If its game is complete, return the game's records, otherwise None. All of them must have the
        same `source`."""
        if "seat" in record.options or not is_game(record.env_id):
            return [(place, record)]
        require_loaded(record.env_id, place)
        start, seats = record.episode.start, author_class(record.env_id).seats
        key = f"{source} {record.env_id} {to_plain(dict(record.options))!r} {start.task} {start.seed}"
        games = self._open.setdefault(key, [])
        game = next((candidate for candidate in games if start.seat not in candidate), None)
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
        """Return the records whose games lack a seat."""
        return [placed for games in self._open.values() for game in games for placed in game.values()]


class ReplayMachines:
    """Machines to replay in, one for each id and its options, made when first needed."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """`options` are the caller's, which replace those of a record."""
        self._options, self._machines = dict(options or {}), dict[str, Machine]()

    def machine(self, env_id: str, options: Mapping[str, Any]) -> Machine:
        """Return the machine of an id with a record's options, except the file of tasks: the record holds its task."""
        left_out = {"tasks", "seat"} | ({"split"} if options.get("split") == WHOLE else set())
        machine_options = {name: value for name, value in options.items() if name not in left_out} | self._options
        key = f"{env_id} {to_plain(machine_options)!r}"
        if key not in self._machines:
            check_options(env_id, machine_options)
            if unnamed := {
                name: value for name, value in services(env_id, machine_options).items() if name not in self._options
            }:
                words = shlex.join(as_pair(name, value) for name, value in unnamed.items())
                raise UsageError(
                    f"a record of {env_id} names services, which are used only if the command names them too: {words}; "
                    f"if you trust it, add --env-options {words}, or name others there"
                )
            self._machines[key] = open_machine(env_id, machine_options)
        return self._machines[key]

    def replay(self, whole: Sequence[Record]) -> Difference | None:
        """Run an episode again, or all seats of a game; return the first difference to its record, or None."""
        env_id, options = whole[0].env_id, whole[0].options
        require_loaded(env_id, "a record")
        rule = demonstrator(env_id) if options.get("seat") is not None else None
        return replay(self.machine(env_id, options), episodes_of(whole), rule)


def episodes_of(whole: Sequence[Record]) -> dict[Seat, Episode]:
    return {record.episode.attempt.seat: record.episode for record in whole}
