"""Measured agents as a table."""

from collections.abc import Mapping

from rich.table import Table

from palaestra.cli.display import table
from palaestra.trainers.evaluate import Both, Report


def result_table(title: str, measured: Mapping[str, Both]) -> Table:
    """Success with its 95 % interval, sampled and greedy, and tool calls an episode; fits 80 columns."""
    rows = {
        name: (_interval(both.sampled), _interval(both.greedy), f"{both.sampled.calls:.2f}")
        for name, both in measured.items()
    }
    return table(title, rows, ("sampled", "greedy", "calls"))


def _interval(report: Report) -> str:
    return f"{report.success:.3f} [{report.low:.2f}, {report.high:.2f}]"
