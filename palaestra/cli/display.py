"""Showing a long stage: a live panel on a terminal, plain lines elsewhere."""

import time
from collections.abc import Generator, Mapping
from typing import Literal, TypeVar

from rich.console import Console
from rich.live import Live
from rich.table import Table

from palaestra.trainers.progress import Progress

Result = TypeVar("Result")
_PLAIN_LINES = 10
"""How many lines a stage prints where there is no terminal."""
_COLUMNS = {
    "success": "rewards/success/mean",
    "reward": "reward",
    "entropy": "entropy",
    "dead groups": "frac_reward_zero_std",
    "calls": "tools/call_frequency",
    "loss": "loss",
    "success with tool": "success_with_tool",
}


def watch(stage: Generator[Progress, None, Result], console: Console) -> Result:
    """Run a stage to its end, showing each step; returns what the stage returns."""
    shown, name, first, began, said = 0, "", 0, 0.0, ""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            try:
                progress = next(stage)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if progress.stage != name:  # Counted from what was seen: a run that goes on did steps in another process.
                name, first, shown, began = progress.stage, progress.step, 0, time.perf_counter()
            line = _line(progress, time.perf_counter() - began, progress.step - first)
            if progress.note and progress.note != said:  # What holds of one step after the other is said once.
                show_line(console, progress.note, "yellow")
            said = progress.note
            if console.is_terminal:
                live.update(line, refresh=True)
            every = max(1, progress.total // _PLAIN_LINES)
            due = progress.step // every != shown // every or progress.step == progress.total
            if progress.metrics and (due or "success_with_tool" in progress.metrics) and shown != progress.step:
                shown = progress.step
                console.print(line, highlight=False, soft_wrap=True)


def _line(progress: Progress, seconds: float, steps: int) -> str:
    left = f"  {seconds / steps * (progress.total - progress.step):.0f} s left" if steps else ""
    figures = [f"{name} {progress.metrics[key]:.2f}" for name, key in _COLUMNS.items() if key in progress.metrics]
    if "num_tokens" in progress.metrics:
        rate = progress.metrics["num_tokens"] / max(1e-9, progress.metrics["step_time"])
        figures.append(f"{rate:,.0f} tokens/s")
    return f"{progress.stage:<14} {progress.step:>4}/{progress.total}  {'  '.join(figures)}{left}"


def show_line(console: Console, text: str, style: str = "") -> None:
    """Print text as it is: no markup, no colours of its own, and not folded where nobody watches."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def table(
    title: str,
    rows: Mapping[str, tuple[str, ...]],
    columns: tuple[str, ...],
    justify: Literal["left", "right"] = "right",
) -> Table:
    """A small table: a name and its figures a row; words are better off on the left."""
    drawn = Table(title=title or None, title_justify="left")
    drawn.add_column("", overflow="fold")
    for column in columns:
        drawn.add_column(column, justify=justify)
    for name, values in rows.items():
        drawn.add_row(name, *values)
    return drawn
