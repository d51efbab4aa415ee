"""`palaestra rescore FILE --reward NAME`: what another reward would have given for episodes that were played."""

import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from palaestra.cli.blame import blaming
from palaestra.cli.display import show_line, table
from palaestra.cli.episodes import GameReader
from palaestra.cli.ids import AllowsCode, import_allowed, resolve
from palaestra.cli.output import reporting
from palaestra.errors import UsageError
from palaestra.plain import from_pairs
from palaestra.record import Record, write
from palaestra.registry import is_game

_EXAMPLES = 3
_MEASURABLE = 20
"""Episodes below which their rate means nothing."""


@dataclass(frozen=True)
class Options(AllowsCode):
    """Compute another reward over recorded episodes."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    reward: str
    """The new reward: an environment's id, or a function `module:name` of an Attempt. A game's id rewards whole games,
    whose seats must be in one file."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE for the environment whose reward it is, such as the sandbox that it runs programs in."""
    out: Path | None = None
    """Write the episodes with their new reward here."""


@dataclass(slots=True)
class _Tally:
    """Old rewards beside new ones."""

    changes: list[tuple[str, float, float]] = field(default_factory=list)
    """Of each episode its place, the old reward and the new one."""
    broken: int = 0
    began: float = 0.0
    """When the first episode was judged: what a reward loads until then is not its rate."""

    def add(self, place: str, old: Record, new: Record) -> None:
        if not self.changes and not self.broken:
            self.began = time.process_time()
        if old.episode.reward is None or new.episode.reward is None:
            self.broken += 1
        else:
            self.changes.append((place, old.episode.reward, new.episode.reward))

    def said(self) -> Iterator[str]:
        """The episodes that changed most, and how fast they were judged where there were enough of them to say."""
        taken, judged = time.process_time() - self.began, len(self.changes) + self.broken - 1
        changed = sorted(self.changes, key=lambda change: -abs(change[2] - change[1]))
        yield from (f"{place}: {old:g} -> {new:g}" for place, old, new in changed[:_EXAMPLES] if old != new)
        if judged >= _MEASURABLE:
            yield f"{judged / max(1e-9, taken):,.0f} episodes a second of CPU"

    def figures(self) -> dict[str, float]:
        """The old rewards beside the new, over all episodes."""
        count = max(1, len(self.changes))
        return {
            "episodes": len(self.changes),
            "mean reward, recorded": sum(old for _, old, _ in self.changes) / count,
            "mean reward, new": sum(new for *_, new in self.changes) / count,
            "higher now": sum(new > old for _, old, new in self.changes),
            "lower now": sum(new < old for _, old, new in self.changes),
            "BROKEN": self.broken,
        }

    def table(self, reward: str) -> Table:
        shown = {name: value for name, value in self.figures().items() if name != "BROKEN" or value}
        rows = {name: f"{value:.3f}" if isinstance(value, float) else str(value) for name, value in shown.items()}
        return table(f"Rewards by {reward}", {name: (text,) for name, text in rows.items()}, ("",))


def run(arguments: Sequence[str]) -> int:
    """Print the old rewards beside the new; 1 when a line is no record."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra rescore")
    with reporting(options.json) as figures:
        return _rescore(options, figures)


def _rescore(options: Options, figures: dict[str, Any]) -> int:
    if "" not in sys.path:
        sys.path.insert(0, "")  # A reward of one's own lies in the current folder.
    import_allowed(options.allow_code)
    # An id has a slash or is a short name; a function has a colon and no slash.
    is_function = options.reward.find(":") > 0 and "/" not in options.reward
    name = options.reward if is_function else resolve(options.reward)
    console, tally = Console(), _Tally()
    reading, given = GameReader(options.files, console), from_pairs(options.env_options, "env_options")
    if is_function and given:
        raise UsageError(f"--reward {name} is a function, which takes no --env-options; leave them out")

    def judged() -> Iterator[Record]:
        for place, old, new in _rescored(reading, name, is_function, given):
            tally.add(place, old, new)
            yield new

    if options.out is None:
        deque(judged(), maxlen=0)
    else:
        write(options.out, judged())
    said = list(tally.said())
    of_json = {name.replace(", ", "_").replace(" ", "_").lower(): value for name, value in tally.figures().items()}
    figures |= {"reward": options.reward, **of_json, "incomplete": reading.alone, "defects": reading.defects}
    console.print(tally.table(options.reward))
    if reading.alone:
        said.append(f"{reading.alone} episodes have no new reward, for other seats of their games are missing")
    for text in said:
        show_line(console, text)
    return 1 if reading.defects or reading.alone else 0


def _rescored(
    reading: GameReader, name: str, is_function: bool, given: Mapping[str, Any]
) -> Iterator[tuple[str, Record, Record]]:
    """Each episode, and the same with its new reward. Rounds of a game reward all its seats at once."""
    from palaestra.envs.records.gathering import ReplayMachines
    from palaestra.envs.records.rescore import find_scorer, rescore, rescore_game

    stage = ReplayMachines(given)
    by_rounds = not is_function and is_game(name) and not stage.machine(name, {}).spec.has_reward
    scorer = None if by_rounds else find_scorer(name, given)
    for whole in reading.whole() if by_rounds else ([one] for one in reading):
        with blaming(whole[0][0]):
            new = rescore_game(whole, name, stage) if scorer is None else [rescore(whole[0][1], scorer)]
        yield from ((place, old, one) for (place, old), one in zip(whole, new, strict=True))
