"""Show the progress of a long stage on standard error: live on a terminal, as plain lines elsewhere. Make tables."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.live import Live
from rich.table import Table

from palaestra.shortening import visible

if TYPE_CHECKING:  # Every command prints; those that train alone need the settings of a run.
    from palaestra.trainers.run.progress import OnProgress, Progress

_PLAIN_LINES = 10
"""Number of lines that a stage prints at least."""
_SILENT_SECONDS = 10.0
"""Seconds after which the next step of a stage prints a line in any case."""
_LIVE_ALONE = ("held-out",)
"""Stages that occur many times in a run, and whose end is reported by a note."""
_DAY, _LONGEST = 86_400, 1e9
_LEAST_CUT = 0.1
"""Share of episodes cut by a length limit above which a line shows it."""
_COLUMNS = {
    "success": "rewards/success/mean",
    "reward": "reward",
    "entropy": "entropy",
    "dead groups": "frac_reward_zero_std",
    "calls": "tools/call_frequency",
    "loss": "loss",
    "success with tool": "success_with_tool",
}

_LOW, _HIGH = "success/low", "success/high"
"""The interval of the success, which evaluations report."""
_MEASURED = ("episodes", "success, 95 %", "tokens", "s left")
"""Columns of the live table of an evaluation."""


@dataclass(slots=True)
class _Pace:
    """The step and time at which a stage was first seen, and the last step that was printed."""

    first: int
    began: float
    last_shown: int = 0
    shown_at: float = 0.0

    def left(self, progress: "Progress") -> float | None:
        """Return the estimated seconds to the end of the stage; None before its first step."""
        steps = progress.step - self.first
        return (time.perf_counter() - self.began) / steps * (progress.total - progress.step) if steps > 0 else None


@contextmanager
def display() -> "Iterator[OnProgress]":
    """Yield a function that shows the progress that it is called with."""
    console, paces, last_note = Console(stderr=True), dict[str, _Pace](), ""
    measured: dict[str, tuple[str, ...]] = {}

    def show(progress: "Progress") -> None:
        nonlocal last_note
        if progress.note and progress.note != last_note:  # A note that stays true of the next steps is shown once.
            note(progress.note)
        last_note = progress.note
        if not progress.metrics:
            return
        pace = _pace(paces, progress)
        line = _line(progress, pace.left(progress))
        if console.is_terminal and _LOW in progress.metrics:
            measured[progress.stage] = _measured_row(progress, pace.left(progress))
            live.update(table("", measured, _MEASURED), refresh=True)
            return
        if console.is_terminal:
            live.update(line, refresh=True)
        every = max(1, progress.total // _PLAIN_LINES)
        if progress.stage in _LIVE_ALONE:
            return
        due = progress.step // every != pace.last_shown // every or progress.step == progress.total
        due = due or time.perf_counter() - pace.shown_at >= _SILENT_SECONDS
        first = (
            not pace.last_shown and "step_time" in progress.metrics
        )  # Its line shows how long the whole stage takes.
        if (due or first or "success_with_tool" in progress.metrics) and pace.last_shown != progress.step:
            pace.last_shown, pace.shown_at = progress.step, time.perf_counter()
            console.print(line, highlight=False, soft_wrap=True)

    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield show


def _pace(paces: dict[str, _Pace], progress: "Progress") -> _Pace:
    """Return the pace of a stage since this process first saw it: a resumed run did earlier steps in another one."""
    pace = paces.get(progress.stage)
    if pace is None or progress.step <= pace.first:  # A repeated stage gets a new pace.
        step_seconds = progress.metrics.get("step_time")
        now = time.perf_counter()
        pace = _Pace(progress.step, now) if step_seconds is None else _Pace(progress.step - 1, now - step_seconds)
        pace.shown_at = pace.began
        paces[progress.stage] = pace
    return pace


def _line(progress: "Progress", left: float | None) -> str:
    figures = [f"{name} {progress.metrics[key]:.2f}" for name, key in _COLUMNS.items() if key in progress.metrics]
    if _LOW in progress.metrics:
        figures.append(_interval(progress))
    if progress.metrics.get("tokens"):
        figures.append(f"{progress.metrics['tokens']:,.0f} tokens")
    if (cut := progress.metrics.get("completions/clipped_ratio", 0.0)) > _LEAST_CUT:
        figures.append(f"cut by length {cut:.0%}")
    if broken := progress.metrics.get("episodes/broken"):  # Left out of the other figures.
        figures.append(f"BROKEN {broken:.0f}")
    if "num_tokens" in progress.metrics:
        rate = progress.metrics["num_tokens"] / max(1e-9, progress.metrics["step_time"])
        figures.append(f"{rate:,.0f} tokens/s")
    end = "" if left is None or left < 0.5 or progress.step == progress.total else f"  {_until(left)}"
    return f"{progress.stage:<14} {progress.step:>4}/{progress.total}  {'  '.join(figures)}{end}"


def _interval(progress: "Progress") -> str:
    return f"[{progress.metrics[_LOW]:.2f}, {progress.metrics[_HIGH]:.2f}]"


def _measured_row(progress: "Progress", left: float | None) -> tuple[str, ...]:
    """Return the row of a stage of an evaluation in the live table."""
    success = f"{progress.metrics[_COLUMNS['success']]:.3f} {_interval(progress)}"
    tokens = f"{progress.metrics['tokens']:,.0f}" if progress.metrics.get("tokens") else "-"
    return f"{progress.step}/{progress.total}", success, tokens, "-" if left is None else f"{left:,.0f}"


def _until(seconds: float) -> str:
    """Return as text how long the stage still takes, and the time of day at which it ends."""
    if seconds < 100:
        text = f"{seconds:.0f} s"
    else:
        minutes = round(seconds / 60)
        text = f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
    end = datetime.now() + timedelta(seconds=min(seconds, _LONGEST))
    return f"{text} left, to {end:%H:%M}" if seconds < _DAY else f"{text} left, to {end:%a %d %b %H:%M}"


def note(text: str) -> None:
    """Print a note to standard error."""
    show_line(Console(stderr=True), text, "yellow")


def show_line(console: Console, text: str, style: str = "") -> None:
    """Print text without markup, highlighting or added line breaks, and with control characters made visible."""
    console.print(visible(text), style=style, markup=False, highlight=False, soft_wrap=True)


def table(
    title: str,
    rows: Mapping[str, tuple[str, ...]],
    columns: tuple[str, ...],
    justify: Literal["left", "right"] = "right",
) -> Table:
    """Return a small table. Each row has a name and its figures; use "left" for columns of text."""
    result = Table(title=title or None, title_justify="left")
    result.add_column("", overflow="fold")
    for column in columns:
        result.add_column(column, justify=justify, overflow="fold")  # A name that is cut may be another's, too.
    for name, values in rows.items():
        result.add_row(name, *values)
    return result
