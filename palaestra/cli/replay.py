"""`palaestra replay FILE`: run recorded episodes again without tools, network or model, and compare the results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.episodes import GameReader
from palaestra.cli.ids import AllowsCode, import_allowed
from palaestra.cli.output import run_reported
from palaestra.plain import from_pairs

_SHOWN = 10


@dataclass(frozen=True)
class ReplayOptions(AllowsCode):
    """Run recorded episodes again without their tools, and compare observations and rewards with the record.

    A game is run with all of its seats, which must be in one file.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE options for the episodes' environment, instead of the recorded ones: the sandbox, judge, index or
    browser that its reward needs. A record does not decide where programs run or which server is called."""


def run(arguments: Sequence[str]) -> int:
    """Print the differences. Return 1 if there is one, if a seat of a game is missing, or if a line is not a record."""
    return run_reported(ReplayOptions, "replay", arguments, _replay)


def _replay(options: ReplayOptions, figures: dict[str, Any]) -> int:
    from palaestra.envs.records.gathering import ReplayMachines

    console, counts = Console(), Counter[str]()
    import_allowed(options.allow_code)
    reading, stage = GameReader(options.files, console), ReplayMachines(from_pairs(options.env_options, "env_options"))
    for whole in reading.whole():
        place, record = whole[0]
        difference = stage.replay([seat_record for _, seat_record in whole])
        name = "different" if difference else "identical" if record.episode.reward is not None else "BROKEN"
        counts[name] += len(whole)
        if difference:
            counts["shown"] += 1
            if counts["shown"] <= _SHOWN:
                show_line(console, f"{place}: {difference}")
    figures |= {name.lower(): counts[name] for name in ("identical", "different", "BROKEN")}
    figures |= {"incomplete": reading.alone, "defects": reading.defects}
    parts = [f"{counts['identical']} identical", f"{counts['different']} different"]
    parts += [f"{counts['BROKEN']} BROKEN, identical as far as they got"] * bool(counts["BROKEN"])
    parts += [f"{reading.alone} not run, for other seats of their games are missing"] * bool(reading.alone)
    parts += [f"{reading.defects} lines are no episodes"] * bool(reading.defects)
    console.print(", ".join(parts), highlight=False)
    return 1 if counts["different"] or reading.alone or reading.defects else 0
