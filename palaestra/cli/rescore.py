"""`palaestra rescore FILE --reward NAME`: what another reward would have given for episodes that were played."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from palaestra.cli.blame import blaming
from palaestra.cli.display import table
from palaestra.cli.episodes import Reading
from palaestra.cli.ids import resolve
from palaestra.record import Record, write
from palaestra.registry import is_game

_EXAMPLES = 3
_MEASURABLE = 20
"""Episodes below which their rate means nothing."""


@dataclass(frozen=True)
class Options:
    """Compute another reward over recorded episodes."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    reward: str
    """The new reward: an environment's id, or a function `module:name` of an Attempt. A game's id rewards whole games,
    whose seats must be in one file."""
    out: Path | None = None
    """Write the episodes with their new reward here."""


@dataclass(slots=True)
class _Tally:
    """Old rewards beside new ones."""

    pairs: list[tuple[float, float]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    broken: int = 0
    rate: float | None = None
    """Episodes a second of CPU, where there were enough of them to say."""
    _began: float = 0.0

    def add(self, place: str, old: Record, new: Record) -> None:
        if not self.pairs and not self.broken:
            self._began = time.process_time()
        if old.episode.reward is None or new.episode.reward is None:
            self.broken += 1
            return
        self.pairs.append((old.episode.reward, new.episode.reward))
        self.places.append(place)

    def stop(self) -> None:
        """Take the time since the first episode was judged: what a reward loads until then is not its rate."""
        judged = len(self.pairs) + self.broken - 1
        if judged >= _MEASURABLE:
            self.rate = judged / max(1e-9, time.process_time() - self._began)

    def table(self, reward: str) -> Table:
        count = max(1, len(self.pairs))
        differences = [new - old for old, new in self.pairs]
        rows = {
            "episodes": (str(len(self.pairs)),),
            "mean reward, recorded": (f"{sum(old for old, _ in self.pairs) / count:.3f}",),
            "mean reward, new": (f"{sum(new for _, new in self.pairs) / count:.3f}",),
            "higher now": (str(sum(one > 0 for one in differences)),),
            "lower now": (str(sum(one < 0 for one in differences)),),
        }
        return table(f"Rewards by {reward}", rows | ({"BROKEN": (str(self.broken),)} if self.broken else {}), ("",))

    def most_changed(self) -> list[str]:
        changed = [i for i, (old, new) in enumerate(self.pairs) if old != new]
        changed.sort(key=lambda i: -abs(self.pairs[i][1] - self.pairs[i][0]))
        return [f"{self.places[i]}: {self.pairs[i][0]:g} -> {self.pairs[i][1]:g}" for i in changed[:_EXAMPLES]]


def run(arguments: Sequence[str]) -> int:
    """Print the old rewards beside the new; 1 when a line is no record."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra rescore")
    if "" not in sys.path:
        sys.path.insert(0, "")  # A reward of one's own lies in the current folder.
    # An id has a slash or is a short name; a function has a colon and no slash.
    is_function = ":" in options.reward and "/" not in options.reward
    name = options.reward if is_function else resolve(options.reward)
    console, tally = Console(), _Tally()
    reading = Reading(options.files, console)

    def judged() -> Iterator[Record]:
        for place, old, new in _rescored(reading, name, is_function):
            tally.add(place, old, new)
            yield new
        tally.stop()

    if options.out is not None:
        write(options.out, judged())
    else:
        for _ in judged():
            pass
    console.print(tally.table(options.reward))
    for text in tally.most_changed():
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if tally.rate is not None:
        console.print(f"{tally.rate:,.0f} episodes a second of CPU", highlight=False)
    if reading.alone:
        text = f"{reading.alone} episodes have no new reward, for other seats of their games are missing"
        console.print(text, highlight=False, soft_wrap=True)
    return 1 if reading.defects or reading.alone else 0


def _rescored(reading: Reading, name: str, is_function: bool) -> Iterator[tuple[str, Record, Record]]:
    """Each episode, and the same with its new reward. Rounds of a game reward all its seats at once."""
    from palaestra.envs.records.gathering import Stage
    from palaestra.envs.records.rescore import find_scorer, rescore, rescore_game

    stage = Stage()
    by_rounds = not is_function and is_game(name) and not stage.machine(name, {}).spec.judged
    scorer = None if by_rounds else find_scorer(name)
    for whole in reading.whole() if by_rounds else ([one] for one in reading):
        with blaming(whole[0][0]):
            new = rescore_game(whole, name, stage) if scorer is None else [rescore(whole[0][1], scorer)]
        yield from ((place, old, one) for (place, old), one in zip(whole, new, strict=True))
