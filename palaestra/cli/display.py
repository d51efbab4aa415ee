"""Showing a long stage on standard error, as a live panel on a terminal and as plain lines elsewhere; and tables."""

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeVar

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:  # Every command prints; those that train alone need the settings of a run.
    from palaestra.trainers.progress import Progress

Result = TypeVar("Result")
_PLAIN_LINES = 10
"""How many lines a stage prints where there is no terminal."""
_LIVE_ALONE = ("held-out",)
"""Stages that come again and again, and end in a note of their own."""
_DAY, _LONGEST = 86_400, 1e9
_COLUMNS = {
    "success": "rewards/success/mean",
    "reward": "reward",
    "entropy": "entropy",
    "dead groups": "frac_reward_zero_std",
    "calls": "tools/call_frequency",
    "loss": "loss",
    "success with tool": "success_with_tool",
}


@dataclass(slots=True)
class _Pace:
    """How far a stage was when it was first seen, and what has been shown of it."""

    first: int
    began: float
    shown: int = 0

    def left(self, progress: "Progress") -> float | None:
        """Seconds to the stage's end, as fast as it went so far."""
        steps = progress.step - self.first
        return (time.perf_counter() - self.began) / steps * (progress.total - progress.step) if steps > 0 else None


def watch(stage: "Generator[Progress, None, Result]") -> Result:
    """Run a stage to its end, showing each step; returns what the stage returns."""
    console, paces, said = Console(stderr=True), dict[str, _Pace](), ""
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            try:
                progress = next(stage)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if progress.note and progress.note != said:  # What holds of one step after the other is said once.
                note(progress.note)
            said = progress.note
            if not progress.metrics:
                continue
            pace = _pace(paces, progress)
            line = _line(progress, pace.left(progress))
            if console.is_terminal:
                live.update(line, refresh=True)
            every = max(1, progress.total // _PLAIN_LINES)
            if progress.stage in _LIVE_ALONE:
                continue
            due = progress.step // every != pace.shown // every or progress.step == progress.total
            first = not pace.shown and "step_time" in progress.metrics  # It says how long all will take.
            if (due or first or "success_with_tool" in progress.metrics) and pace.shown != progress.step:
                pace.shown = progress.step
                console.print(line, highlight=False, soft_wrap=True)


def _pace(paces: dict[str, _Pace], progress: "Progress") -> _Pace:
    """The pace of a stage, counted from what was seen: a run that goes on did steps in another process."""
    pace = paces.get(progress.stage)
    if pace is None or progress.step <= pace.first:  # A stage that comes again begins anew.
        taken = progress.metrics.get("step_time")
        now = time.perf_counter()
        pace = _Pace(progress.step, now) if taken is None else _Pace(progress.step - 1, now - taken)
        paces[progress.stage] = pace
    return pace


def _line(progress: "Progress", left: float | None) -> str:
    figures = [f"{name} {progress.metrics[key]:.2f}" for name, key in _COLUMNS.items() if key in progress.metrics]
    if "num_tokens" in progress.metrics:
        rate = progress.metrics["num_tokens"] / max(1e-9, progress.metrics["step_time"])
        figures.append(f"{rate:,.0f} tokens/s")
    end = "" if left is None or progress.step == progress.total else f"  {_until(left)}"
    return f"{progress.stage:<14} {progress.step:>4}/{progress.total}  {'  '.join(figures)}{end}"


def _until(seconds: float) -> str:
    """How long it still takes, and when that is."""
    if seconds < 100:
        text = f"{seconds:.0f} s"
    else:
        minutes = round(seconds / 60)
        text = f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
    end = datetime.now() + timedelta(seconds=min(seconds, _LONGEST))
    return f"{text} left, to {end:%H:%M}" if seconds < _DAY else f"{text} left, to {end:%a %d %b %H:%M}"


def note(text: str) -> None:
    """Something worth knowing that is no result, on standard error."""
    show_line(Console(stderr=True), text, "yellow")


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
