"""`palaestra analyse RUN...`: compare the metrics of runs and episode files in a table, a plot or JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from rich.table import Table

from palaestra.cli.display import note, show_line, table
from palaestra.cli.output import Reported, reporting, require_writable
from palaestra.errors import UsageError
from palaestra.shortening import visible

if TYPE_CHECKING:
    from palaestra.trainers.view import Analysis, SeedGroup, Spread

_ROWS = {
    "held-out, before": "held-out/before",
    "held-out, after": "held-out/after",
    "success": "rewards/success/mean",
    "  all steps": "rewards/success/whole_run",
    "pass@k less avg@k": "rewards/success/pass_less_avg",
    "reward": "reward",
    "dead groups": "frac_reward_zero_std",
    "entropy": "entropy",
    "clipped above": "clip_ratio/high_mean",
    "  free tokens": "clip_ratio/free_high_mean",
    "clipped below": "clip_ratio/low_mean",
    "calls": "tools/call_frequency",
    "  failed": "tools/failure_frequency",
    "turns": "episodes/turns",
    "tokens": "completions/mean_length",
    "  a turn": "completions/tokens_per_turn",
    "deliberative": "modes/deliberative",
    "  their success": "modes/deliberative/success",
    "reactive": "modes/reactive",
    "  theirs": "modes/reactive/success",
    "out of tokens": "completions/clipped_ratio",
    "out of turns": "episodes/turn_limit",
    "broken": "episodes/broken",
    "loss": "loss",
}
"""Rows of the table: label and name in metrics.jsonl. JSON has all figures."""
_BESIDE = {"held-out, after": "  less 1st", "success": "  less 1st ", "  all steps": "  less 1st  "}
"""Rows followed by a row of differences to the first group. Labels are keys: equal ones differ in trailing blanks."""
_MEANING = (
    "means of the last tenth of the steps, at least 5, with 95 % over seeds (±) or, of a single run, over tasks ([,]); "
    "less 1st: beside the first column, paired by seed"
)
_LISTED, _LETTERS = 5, 60
"""Maximum number of listed episodes in which judge and outcome contradict, and of characters of a question."""
_NARROWEST, _ABSENT = 13, "-"
"""Minimum characters of a column, and the text of a missing figure."""


@dataclass(frozen=True)
class AnalyseOptions(Reported):
    """Show the metrics of runs, folders of runs and episode files side by side: success, entropy, clipping, use of
    tools, lengths. Runs that differ only in their seed are one column, with 95 % intervals over seeds.
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders, folders of run folders (such as a sweep), or episode files, written by eval --save or collect."""
    plot: Path | None = None
    """File for a plot of the runs' curves: a .png, .svg or .pdf."""

    def __post_init__(self) -> None:
        if self.plot is not None:
            require_writable("--plot", self.plot)


def run(arguments: Sequence[str]) -> int:
    """Print the tables, and draw the plot if one is named."""
    options = tyro.cli(AnalyseOptions, args=list(arguments), prog="palaestra analyse")
    if not options.paths:
        raise UsageError("name runs' folders, or files of episodes: palaestra analyse RUN")
    from palaestra.trainers.view import analyse
    from palaestra.trainers.view.plots import check_plot

    if options.plot is not None:
        check_plot(options.plot)
    with reporting(options.json) as figures:
        result = analyse(options.paths, note)
        show(result, Console(), options.plot)
        figures |= result.as_dict()
    return 0


def show(analysis: "Analysis", console: Console, image: Path | None = None) -> None:
    """Print an analysis; if `image` is given, draw its curves into that file."""
    for printed in tables(analysis, console.width):
        console.print(printed)
    if any(source.steps for group in analysis.groups for source in group.sources):
        show_line(console, _MEANING)
    for group in analysis.groups:
        _show_disagreements(group, console)
    if image is not None:
        from palaestra.trainers.view.plots import plot

        plot(image, analysis)
        show_line(console, f"curves: {image}")


def _show_disagreements(group: "SeedGroup", console: Console) -> None:
    """Print how often a judge's scores contradict the outcome, and list the first such cases."""
    from palaestra.trainers.reward.judge_agreement import disagreements

    if not group.labelled:
        return
    apart = disagreements(group.labelled)
    show_line(console, f"{group.name}: {len(apart)} of {len(group.labelled)} scores contradict the outcome")
    for case in apart[:_LISTED]:
        question = visible(case.question[:_LETTERS])
        show_line(
            console,
            f"  {case.contradiction}: {case.score:.2f}, {case.outcome:.2f}; {case.place}: {question}",
        )


def tables(analysis: "Analysis", width: int) -> Iterator[Table]:
    """Yield tables, each with as many groups as fit beside each other."""
    groups, rows = analysis.groups, {"runs": [str(len(group.sources)) for group in analysis.groups]}
    for label, name in _ROWS.items():
        if any(name in group.figures for group in groups):
            rows[label] = [_cell(group.figures.get(name), "") for group in groups]
        if label in _BESIDE and any(name in group.beside for group in groups):
            rows[_BESIDE[label]] = [_cell(group.beside.get(name), "+") for group in groups]
    widest = max(len(cell) for cells in rows.values() for cell in cells)
    together = max(1, (width - max(map(len, rows)) - 4) // (max(_NARROWEST, widest) + 3))
    for at in range(0, len(groups), together):
        part = slice(at, at + together)
        names = tuple(group.name for group in groups[part])
        yield table("", {label: tuple(cells[part]) for label, cells in rows.items()}, names)


def _cell(spread: "Spread | None", sign: str) -> str:
    if spread is None:
        return _ABSENT
    value = f"{spread.value:{sign}.3f}"
    if spread.low is None or spread.high is None:
        return value
    if spread.over == "tasks":
        return f"{value} [{_share(spread.low)}, {_share(spread.high)}]"
    return f"{value} ±{(spread.high - spread.low) / 2:.3f}"


def _share(value: float) -> str:
    """Return a bound in [0, 1] in three characters, so that three columns fit."""
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0") else text[:3]
