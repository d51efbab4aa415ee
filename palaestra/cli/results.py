"""Measured agents as tables: one that fits 80 columns for several agents, and those of `eval`, which fit 40.

Where every episode broke there is no figure: a dash in a table, null in JSON.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table

from palaestra.cli.display import table
from palaestra.trainers.evaluation.evaluate import Both, Report
from palaestra.trainers.evaluation.statistics import PairedDifference, powers_of_two

_ABSENT = "-"
SUITE = "palaestra/"
"""What every id of the suite begins with, and a table leaves out."""
_OF_SCORED = ("success", "low", "high", "reward", "calls", "failed_calls", "success_with_tool", "tool_share", "tokens")
"""Figures of a report that are means over scored episodes."""
_OF_PAIRS = ("difference", "low", "high", "p_value")
"""Figures of a comparison that need a task which both agents were scored in."""


def result_table(title: str, measured: Mapping[str, Both]) -> Table:
    """Success with its 95 % interval, sampled and greedy, and tool calls an episode; fits 80 columns."""
    rows = dict[str, tuple[str, str, str]]()
    for name, both in measured.items():
        rows[name] = _row(both.sampled, both.greedy)
        for env, figures in both.sampled.environments.items():
            rows[f"{name}, {env.removeprefix(SUITE)}"] = _row(
                Report(**figures), Report(**both.greedy.environments[env])
            )
    return table(title, rows, ("sampled", "greedy", "calls"))


def shares_table(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """With which shares the environments of a mixture were played, and learned from."""
    rows = {
        env.removeprefix(SUITE): tuple(f"{share:.1%}" for share in env_shares.values())
        for env, env_shares in shares.items()
    }
    return table("Shares of the mixture", rows, tuple(next(iter(shares.values()))))


def report_table(title: str, reports: Mapping[str, Report]) -> Table:
    """Everything about one agent but what depends on k: a column for each way it played, such as sampled and greedy."""
    report_list = list(reports.values())
    rows = {
        "tasks": [str(report.tasks) for report in report_list],
        "samples": [str(report.samples) for report in report_list],
        "temperature": [f"{report.temperature:g}" for report in report_list],
    }
    for name, form in _FORMS.items():
        rows[name] = [_of_scored(report, form) for report in report_list]
    for name in report_list[0].parts:
        estimates = [report.parts.get(name) for report in report_list]
        rows[name] = [
            f"{part['value']:.3f} {_range(part['low'], part['high'])}" if part else _ABSENT for part in estimates
        ]
    for ending in report_list[0].endings:
        rows[ending.replace("_", " ")] = [str(report.endings[ending]) for report in report_list]
    return table(title, {name: tuple(values) for name, values in rows.items()}, tuple(reports))


def k_table(report: Report, title: str = "") -> Table:
    """pass@k and maj@k of a sampled evaluation, with the interval of pass@k; `-` where episodes broke in every task."""
    rows = {}
    for k in powers_of_two(report.samples):
        passed, voted = report.at_k[f"pass@{k}"], report.at_k[f"maj@{k}"]
        figures = (f"{passed['value']:.3f}", _range(passed["low"], passed["high"]), f"{voted['value']:.3f}")
        rows[str(k)] = figures if passed["tasks"] else (_ABSENT,) * 3
    return table(title, rows, ("pass@k", "95 %", "maj@k"))


def comparison_table(title: str, compared: Mapping[str, PairedDifference]) -> Table:
    """How much better the first of two agents is: a column for each way they played."""
    comparisons = list(compared.values())
    rows = {
        "difference": [f"{comparison.difference:+.3f}" if comparison.tasks else _ABSENT for comparison in comparisons],
        "  95 % low": [f"{comparison.low:+.3f}" if comparison.tasks else _ABSENT for comparison in comparisons],
        "  95 % high": [f"{comparison.high:+.3f}" if comparison.tasks else _ABSENT for comparison in comparisons],
        "p": [_chance(comparison.p_value) if comparison.tasks else _ABSENT for comparison in comparisons],
        "tasks won": [str(comparison.wins) for comparison in comparisons],
        "  tied": [str(comparison.ties) for comparison in comparisons],
        "  lost": [str(comparison.losses) for comparison in comparisons],
        "  unscored": [str(comparison.unscored) for comparison in comparisons],
    }
    return table(title, {name: tuple(values) for name, values in rows.items()}, tuple(compared))


def report_figures(report: Report) -> dict[str, Any]:
    """A report for JSON."""
    figures = report.as_dict()
    if not _has_scored(report):
        figures |= dict.fromkeys(_OF_SCORED)
    of_k = {name: _known(estimate, ("value", "low", "high")) for name, estimate in report.at_k.items()}
    return figures | {"at_k": of_k}


def comparison_figures(found: PairedDifference) -> dict[str, Any]:
    """A comparison for JSON."""
    return _known(asdict(found), _OF_PAIRS)


def _known(figures: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Figures of so many `tasks`; of none, these are nothing."""
    return dict(figures) if figures["tasks"] else {**figures, **dict.fromkeys(names)}


def _has_scored(report: Report) -> bool:
    return sum(report.endings.values()) > report.broken


def _of_scored(report: Report, form: Callable[[Report], str]) -> str:
    return form(report) if _has_scored(report) else _ABSENT


def _row(sampled: Report, greedy: Report) -> tuple[str, str, str]:
    calls = _of_scored(sampled, lambda report: f"{report.calls:.2f}")
    return _of_scored(sampled, _interval), _of_scored(greedy, _interval), calls


def _interval(report: Report) -> str:
    return f"{report.success:.3f} [{report.low:.2f}, {report.high:.2f}]"


def _range(low: float, high: float) -> str:
    return f"{low:.2f}-{high:.2f}"


def _chance(p_value: float) -> str:
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


_FORMS: Mapping[str, Callable[[Report], str]] = {
    "success": lambda report: f"{report.success:.3f}",
    "  95 %": lambda report: _range(report.low, report.high),
    "reward": lambda report: f"{report.reward:.3f}",
    "calls": lambda report: f"{report.calls:.2f}",
    "  failed": lambda report: f"{report.failed_calls:.1%}",
    "tool used": lambda report: f"{report.tool_share:.1%}",
    "  success": lambda report: f"{report.success_with_tool:.3f}",
    "tokens": lambda report: _ABSENT if report.tokens is None else f"{report.tokens:.1f}",
}
"""The rows of a report that are about scored episodes."""
