"""Measured agents as tables: one that fits 80 columns for several agents, and those of `eval`, which fit 40."""

from collections.abc import Mapping

from rich.table import Table

from palaestra.cli.display import table
from palaestra.trainers.evaluate import Both, Report
from palaestra.trainers.statistics import Comparison, powers_of_two


def result_table(title: str, measured: Mapping[str, Both]) -> Table:
    """Success with its 95 % interval, sampled and greedy, and tool calls an episode; fits 80 columns."""
    rows = {
        name: (_interval(both.sampled), _interval(both.greedy), f"{both.sampled.calls:.2f}")
        for name, both in measured.items()
    }
    return table(title, rows, ("sampled", "greedy", "calls"))


def report_table(title: str, reports: Mapping[str, Report]) -> Table:
    """Everything about one agent but what depends on k: a column for each way it played, such as sampled and greedy."""
    shown = list(reports.values())
    rows = {
        "tasks": [str(report.tasks) for report in shown],
        "samples": [str(report.samples) for report in shown],
        "temperature": [f"{report.temperature:g}" for report in shown],
        "success": [f"{report.success:.3f}" for report in shown],
        "  95 %": [_range(report.low, report.high) for report in shown],
        "reward": [f"{report.reward:.3f}" for report in shown],
        "calls": [f"{report.calls:.2f}" for report in shown],
        "  failed": [f"{report.failed_calls:.1%}" for report in shown],
        "tool used": [f"{report.tool_share:.1%}" for report in shown],
        "  success": [f"{report.success_with_tool:.3f}" for report in shown],
        "tokens": [f"{report.tokens:.1f}" for report in shown],
    }
    for ending in shown[0].endings:
        rows[ending.replace("_", " ")] = [str(report.endings[ending]) for report in shown]
    return table(title, {name: tuple(values) for name, values in rows.items()}, tuple(reports))


def k_table(report: Report, title: str = "") -> Table:
    """pass@k and maj@k of a sampled evaluation, with the interval of pass@k; `-` where episodes broke in every task."""
    rows = {}
    for k in powers_of_two(report.samples):
        passed, voted = report.at_k[f"pass@{k}"], report.at_k[f"maj@{k}"]
        figures = (f"{passed['value']:.3f}", _range(passed["low"], passed["high"]), f"{voted['value']:.3f}")
        rows[str(k)] = figures if passed["tasks"] else ("-", "-", "-")
    return table(title, rows, ("pass@k", "95 %", "maj@k"))


def comparison_table(title: str, compared: Mapping[str, Comparison]) -> Table:
    """How much better the first of two agents is: a column for each way they played."""
    shown = list(compared.values())
    rows = {
        "difference": [f"{found.difference:+.3f}" for found in shown],
        "  95 % low": [f"{found.low:+.3f}" for found in shown],
        "  95 % high": [f"{found.high:+.3f}" for found in shown],
        "p": [_chance(found.p_value) for found in shown],
        "tasks won": [str(found.wins) for found in shown],
        "  tied": [str(found.ties) for found in shown],
        "  lost": [str(found.losses) for found in shown],
        "  unscored": [str(found.unscored) for found in shown],
    }
    return table(title, {name: tuple(values) for name, values in rows.items()}, tuple(compared))


def _interval(report: Report) -> str:
    return f"{report.success:.3f} [{report.low:.2f}, {report.high:.2f}]"


def _range(low: float, high: float) -> str:
    return f"{low:.2f}-{high:.2f}"


def _chance(p_value: float) -> str:
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"
