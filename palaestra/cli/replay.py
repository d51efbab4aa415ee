"""`palaestra replay FILE`: recorded episodes run again without tools, network or model, and must come out identical."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from palaestra.cli.episodes import Reading
from palaestra.cli.ids import resolve
from palaestra.registry import is_game

if TYPE_CHECKING:
    from palaestra.envs.records.games import Placed
    from palaestra.envs.records.replay import Difference

_SHOWN = 10


@dataclass(frozen=True)
class Options:
    """Run recorded episodes again without their tools, and compare observations and rewards with the record.

    A game is run with all of its seats, which must be in one file.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""


def run(arguments: Sequence[str]) -> int:
    """Print what differs; 1 when something does, when a seat of a game is missing, or when a line is no record."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra replay")
    console, counts = Console(), Counter[str]()
    reading = Reading(options.files, console)
    for placed, difference in _replayed(reading, counts):
        place, record = placed[0]
        name = "different" if difference else "identical" if record.episode.reward is not None else "BROKEN"
        counts[name] += len(placed)
        if difference:
            counts["shown"] += 1
            if counts["shown"] <= _SHOWN:
                console.print(f"{place}: {difference}", markup=False, highlight=False, soft_wrap=True)
    said = [f"{counts['identical']} identical", f"{counts['different']} different"]
    said += [f"{counts['BROKEN']} BROKEN, identical as far as they got"] * bool(counts["BROKEN"])
    said += [f"{counts['alone']} not run, for other seats of their games are missing"] * bool(counts["alone"])
    said += [f"{reading.defects} lines are no episodes"] * bool(reading.defects)
    console.print(", ".join(said), highlight=False)
    return 1 if counts["different"] or counts["alone"] or reading.defects else 0


def _replayed(reading: Reading, counts: Counter[str]) -> "Iterator[tuple[list[Placed], Difference | None]]":
    """Each episode, or the episodes of each game, with its first difference; `alone` counts seats without a game."""
    from palaestra.envs.records.games import GameStage, Gathering, replay_game
    from palaestra.envs.records.replay import Stage, replay

    stage, games, gathering, known = Stage(), GameStage(), Gathering(), set[str]()
    for place, record in reading:
        if record.env_id not in known:
            known.add(resolve(record.env_id))
        if not is_game(record.env_id):
            yield [(place, record)], replay(stage.env(record), record.episode)
            continue
        whole = gathering.add(str(reading.path), place, record)
        if whole is not None:
            match, game = games.game(record.env_id, record.options)
            yield whole, replay_game(match, game, {one.episode.start.seat: one.episode for _, one in whole})
    counts["alone"] = len(gathering.incomplete)
