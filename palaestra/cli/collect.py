"""`palaestra collect ID --out FILE.jsonl`: a teacher plays, and its best episodes are kept for `palaestra sft`.

    play  ->  FILE.played.jsonl, one line when an episode ends  ->  selection  ->  FILE.jsonl, whole or not at all

Left out: playing (`rollouts`), and the rules of the selection (`trainers.data.selection`).
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import tyro
from rich.console import Console

from palaestra.cli.agents import AgentOptions
from palaestra.cli.display import show_line, table
from palaestra.cli.ids import resolve, search_current_folder
from palaestra.cli.rollouts import EpisodeCollection, RolloutOptions, run_rollouts
from palaestra.cli.stitching import Stitching
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.record import Record, write
from palaestra.registry import load_author
from palaestra.trainers.data.selection import SCORES, Score, Selection, SelectionCounts, select

_COLUMNS = {
    "played": "played",
    "broken": "BROKEN",
    "wrong": "wrong",
    "duplicates": "duplicates",
    "beyond_top_k": "beyond top k",
    "kept": "kept",
}
"""Columns of the table, by the keys of these counts in FILE.collect.json; in the order of `SelectionCounts`."""


@dataclass(frozen=True, kw_only=True)
class CollectOptions(RolloutOptions):
    """Let a teacher play, and keep its best episodes. Every episode is written to FILE.played.jsonl as it ends.

    The same command again plays only the episodes that are missing there or were BROKEN, and selects again. It may ask
    for more --tasks or --samples, or for another selection.
    """

    top_k: int | None = None
    """Maximum number of episodes to keep of each source (`source` or `data_source` of a task, else the environment):
    those with the highest score; of equal scores, the shorter episode."""
    score: str | None = None
    """Score for --top-k: `reward` (the default), `calls-worked` for the share of calls that worked, `short` for few
    tokens, or a function `module:name` that returns a number for an Episode."""
    stitch: str | None = None
    """Play written solutions instead of an agent, with tool calls inserted where a solution computes something. The
    solutions are a key of the tasks' data, a function `module:name` of a Task, or a file of episodes without calls. The
    new episodes are marked as synthetic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        select((), top_k=self.top_k)  # Raises an error for an invalid number.
        if self.score is not None and self.top_k is None:
            raise UsageError(f"--score {self.score} orders the episodes of a source; say with --top-k how many to keep")
        if self.stitch is not None and self.agent != AgentOptions():
            raise UsageError("--stitch plays written solutions; leave out what names an agent")


def run(arguments: Sequence[str]) -> int:
    """Play the missing episodes, select the best, and print the counts. Return 1 if no episode was kept."""
    options = tyro.cli(CollectOptions, args=list(arguments), prog="palaestra collect")
    score = _score(options.score or "reward")
    stitching = Stitching(options.stitch, resolve(options.env_id)) if options.stitch is not None else None
    fits = stitching.fits if stitching is not None else lambda record: True
    return run_rollouts(options, "collect", lambda rollouts: _chosen(options, score, fits, rollouts), stitching)


def _chosen(options: CollectOptions, score: Score, fits: Callable[[Record], bool], rollouts: EpisodeCollection) -> int:
    records, console = rollouts.records(), rollouts.console
    chosen = select(records, least_success=options.least_success, top_k=options.top_k, score=score, fits=fits)
    _show(chosen, rollouts.env_id, console)
    by_source = {source: _count_by_key(counts) for source, counts in chosen.by_source.items()}
    rules = {"least_success": options.least_success, "top_k": options.top_k, "score": options.score}
    counts = _count_by_key(chosen.counts)
    summary = {**rules, "counts": counts, "by_source": by_source, "spent_last": rollouts.cost}
    rollouts.file.summarise(summary)
    rollouts.figures.update({"env_id": rollouts.env_id, "out": str(options.out), **summary})
    if not chosen.records:
        show_line(console, f"nothing was kept, so {options.out} was not written")
        return 1
    write(options.out, chosen.records)
    show_line(console, f"{len(chosen.records)} episodes: {options.out}")
    rollouts.print_defects()
    return 0


def _count_by_key(counts: SelectionCounts) -> dict[str, int]:
    """Return the counts by their keys in FILE.collect.json."""
    return dict(zip(_COLUMNS, astuple(counts), strict=True))


def _score(name: str) -> Score:
    """Return the built-in score of that name, or one that calls the user's function `module:name`."""
    if name in SCORES:
        return SCORES[name]
    if ":" not in name:
        raise UsageError(f"--score is {name!r}; expected {', '.join(SCORES)}, or a function as module:name")
    search_current_folder()
    scorer = load_author(name, "--score: the function")

    def score(record: Record) -> float:
        value = scorer(record.episode)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise EnvironmentDefect(f"--score {name} returned {value!r} for an episode; expected a number")
        return float(value)

    return score


def _show(chosen: Selection, env_id: str, console: Console) -> None:
    rows = dict(chosen.by_source)
    if len(rows) > 1:
        rows["all"] = chosen.counts
    # The title names the environment already, and a row has little room for words.
    table_rows = {
        "episodes" if source == env_id else source: tuple(map(str, astuple(counts))) for source, counts in rows.items()
    }
    console.print(table(f"Episodes of {env_id.rpartition(':')[2]}", table_rows, tuple(_COLUMNS.values())))
