"""`palaestra rescore FILE --reward NAME`: compute another reward for recorded episodes."""

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
from palaestra.cli.ids import AllowsCode, import_allowed, resolve, search_current_folder
from palaestra.cli.output import run_reported
from palaestra.errors import UnknownId, UsageError
from palaestra.plain import from_pairs
from palaestra.record import Record, write
from palaestra.registry import is_game

_EXAMPLES = 3
_MEASURABLE = 20
"""Smallest number of episodes for which a rate is shown."""


@dataclass(frozen=True)
class RescoreOptions(AllowsCode):
    """Compute another reward over recorded episodes."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    reward: str
    """The new reward: an environment's id, or a function `module:name` of an Attempt. A game's id rewards whole games,
    whose seats must be in one file."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE options for the environment that computes the reward, such as the sandbox for its programs."""
    out: Path | None = None
    """Write the episodes with their new reward here."""


@dataclass(slots=True)
class _Tally:
    """Counts and lists the old and new reward of each rescored episode."""

    changes: list[tuple[str, float, float]] = field(default_factory=list)
    """Place, old reward and new reward of each episode."""
    broken: int = 0
    began: float = 0.0
    """CPU time after the first episode was scored, so that the rate excludes what a reward loads before."""

    def add(self, place: str, old: Record, new: Record) -> None:
        if not self.changes and not self.broken:
            self.began = time.process_time()
        if old.episode.reward is None or new.episode.reward is None:
            self.broken += 1
        else:
            self.changes.append((place, old.episode.reward, new.episode.reward))

    def summary_lines(self) -> Iterator[str]:
        """Yield lines about the episodes that changed most; if there are enough episodes, also the speed of scoring."""
        seconds, count = time.process_time() - self.began, len(self.changes) + self.broken - 1
        changed = sorted(self.changes, key=lambda change: -abs(change[2] - change[1]))
        yield from (f"{place}: {old:g} -> {new:g}" for place, old, new in changed[:_EXAMPLES] if old != new)
        if count >= _MEASURABLE:
            yield f"{count / max(1e-9, seconds):,.0f} episodes a second of CPU"

    def figures(self) -> dict[str, float]:
        """Return the mean of the old and of the new rewards, and how many are higher now, lower now, or BROKEN."""
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
        figures = {name: value for name, value in self.figures().items() if name != "BROKEN" or value}
        rows = {name: f"{value:.3f}" if isinstance(value, float) else str(value) for name, value in figures.items()}
        return table(f"Rewards by {reward}", {name: (text,) for name, text in rows.items()}, ("",))


def run(arguments: Sequence[str]) -> int:
    """Print the old and the new rewards. Return 1 if a line is not a record or a game lacks a seat."""
    return run_reported(RescoreOptions, "rescore", arguments, _rescore)


def _rescore(options: RescoreOptions, figures: dict[str, Any]) -> int:
    search_current_folder()  # For a reward of the user's own.
    import_allowed(options.allow_code)
    # An id has a slash or is a short name; a function has a colon and no slash.
    is_function = options.reward.find(":") > 0 and "/" not in options.reward
    name = options.reward if is_function else _resolve_id(options.reward)
    console, tally = Console(), _Tally()
    reading, env_options = GameReader(options.files, console), from_pairs(options.env_options, "env_options")
    if is_function and env_options:
        raise UsageError(f"--reward {name} is a function, which takes no --env-options; leave them out")

    def judged() -> Iterator[Record]:
        for place, old, new in _rescored(reading, name, is_function, env_options):
            tally.add(place, old, new)
            yield new

    if options.out is None:
        deque(judged(), maxlen=0)
    else:
        write(options.out, judged())
    lines = list(tally.summary_lines())
    of_json = {name.replace(", ", "_").replace(" ", "_").lower(): value for name, value in tally.figures().items()}
    figures |= {"reward": options.reward, **of_json, "incomplete": reading.alone, "defects": reading.defects}
    console.print(tally.table(options.reward))
    if reading.alone:
        lines.append(f"{reading.alone} episodes have no new reward, for other seats of their games are missing")
    for text in lines:
        show_line(console, text)
    return 1 if reading.defects or reading.alone else 0


def _resolve_id(reward: str) -> str:
    try:
        return resolve(reward)
    except UnknownId as error:
        if error.near_ids or "/" in reward:
            raise
        module, _, function = reward.rpartition(".")
        raise UsageError(
            f"--reward is {reward!r}, which is no environment's id and does not have the form of a function; write a "
            f"function as {module or 'my_module'}:{function}, or an id that `palaestra list` shows"
        ) from error


def _rescored(
    reading: GameReader, name: str, is_function: bool, env_options: Mapping[str, Any]
) -> Iterator[tuple[str, Record, Record]]:
    """Yield the place, record and rescored record of each episode. If a game's rounds compute its rewards, all its
    seats are rescored together.
    """
    from palaestra.envs.records.gathering import ReplayMachines
    from palaestra.envs.records.rescore import find_scorer, rescore, rescore_game

    stage = ReplayMachines(env_options)
    by_rounds = not is_function and is_game(name) and not stage.machine(name, {}).spec.has_reward
    scorer = None if by_rounds else find_scorer(name, env_options)
    for whole in reading.whole() if by_rounds else ([record] for record in reading):
        with blaming(whole[0][0]):
            new = rescore_game(whole, name, stage) if scorer is None else [rescore(whole[0][1], scorer)]
        yield from ((place, old, new_record) for (place, old), new_record in zip(whole, new, strict=True))
