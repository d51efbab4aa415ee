"""Tables and JSON figures of measured agents: a table of several agents in 80 columns, and the tables of `eval`.

If all episodes of a measurement are BROKEN, it has no figures: tables show a dash, JSON has null.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from palaestra.causes import Causes
from palaestra.cli.display import show_line, table
from palaestra.episode import Episode
from palaestra.mixture import read_mixture
from palaestra.trainers.evaluation.evaluate import Both, Report, compare
from palaestra.trainers.evaluation.statistics import PairedDifference, powers_of_two

_ABSENT = "-"
SUITE = "palaestra/"
"""Prefix of every id of the suite, which tables leave out."""
_OF_SCORED = ("success", "low", "high", "reward", "calls", "failed_calls", "success_with_tool", "tool_share", "tokens")
"""Figures of a report that are means over scored episodes."""
_OF_PAIRS = ("difference", "low", "high", "p_value")
"""Figures of a comparison that need at least one task with scored episodes of both agents."""


@dataclass(slots=True)
class Measured:
    """An agent's reports and episodes by column of a table: by decoding (sampled or greedy), and by environment of a
    mixture or seat of a game."""

    model: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Options of the agent's environment."""
    seats: tuple[str, ...] = ()
    reports: dict[str, Report] = field(default_factory=dict)
    episodes: dict[str, list[Episode]] = field(default_factory=dict)
    gains: dict[str, Any] = field(default_factory=dict)
    """Gain of second attempts over first ones, the number of them without a critique, and the judge's last fault."""
    all: list[Episode] = field(default_factory=list)
    """All episodes, sampled and greedy; in a game those of the other seats too."""
    tokens: int = 0
    """Tokens that the agent sampled in this process; 0 for an agent without tokens."""
    seconds: float = 0.0
    """Seconds of play in this process."""

    def player(self, seat: str | None, others: str) -> str:
        """Return the name of the agent that played a seat."""
        return others if self.seats and seat not in self.seats else self.model

    @property
    def scored(self) -> bool:
        """True if each column has an episode with a reward."""
        return all(any(episode.reward is not None for episode in column) for column in self.episodes.values())

    def figures(self, way: str) -> dict[str, Any]:
        """Return the report of one column for JSON, with the results of each task."""
        return report_figures(self.reports[way]) | {"per_task": _per_task(self.episodes[way])}


def result_table(title: str, measured: Mapping[str, Both]) -> Table:
    """Return a table of success with its 95 % interval, sampled and greedy, and of calls per episode, in 80 columns."""
    rows = dict[str, tuple[str, str, str]]()
    for name, both in measured.items():
        rows[name] = _row(both.sampled, both.greedy)
        for env, figures in both.sampled.environments.items():
            rows[f"{name}, {env.removeprefix(SUITE)}"] = _row(
                Report(**figures), Report(**both.greedy.environments[env])
            )
    return table(title, rows, ("sampled", "greedy", "calls"))


def shares_table(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table of the shares with which the environments of a mixture were played and learned from."""
    rows = {
        env.removeprefix(SUITE): tuple(f"{share:.1%}" for share in env_shares.values())
        for env, env_shares in shares.items()
    }
    return table("Shares of the mixture", rows, tuple(next(iter(shares.values()))))


def report_table(title: str, reports: Mapping[str, Report]) -> Table:
    """Return a table of all figures of one agent that do not depend on k, with a column for each report, such as
    sampled and greedy.
    """
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
    for name in dict.fromkeys(name for report in report_list for name in report.requests):
        rows[f"requests {name}"] = [f"{report.requests.get(name, 0.0):.2f}" for report in report_list]
    return table(title, {name: tuple(values) for name, values in rows.items()}, tuple(reports))


def k_table(report: Report, title: str = "") -> Table:
    """Return a table of pass@k, pass^k and maj@k with their intervals; `-` if no task has k scored episodes."""
    rows = {}
    for name in (f"{kind}{k}" for kind in ("pass@", "pass^", "maj@") for k in powers_of_two(report.samples)):
        figure = report.at_k[name]
        figures = (f"{figure['value']:.3f}", _range(figure["low"], figure["high"]))
        rows[name] = figures if figure["tasks"] else (_ABSENT, _ABSENT)
    return table(title, rows, ("mean", "95 %"))


def comparison_table(title: str, compared: Mapping[str, PairedDifference]) -> Table:
    """Return a table of how much better the first of two agents is, with a column for each way of playing."""
    rows = {
        "difference": [f"{pair.difference:+.3f}" for pair in compared.values()],
        "  95 % low": [f"{pair.low:+.3f}" for pair in compared.values()],
        "  95 % high": [f"{pair.high:+.3f}" for pair in compared.values()],
        "p": [f"{pair.p_value:.3f}" if pair.p_value >= 0.001 else "< 0.001" for pair in compared.values()],
        "tasks won": [str(pair.wins) for pair in compared.values()],
        "  tied": [str(pair.ties) for pair in compared.values()],
        "  lost": [str(pair.losses) for pair in compared.values()],
        "  unscored": [str(pair.unscored) for pair in compared.values()],
    }
    for name in ("difference", "  95 % low", "  95 % high", "p"):
        rows[name] = [cell if pair.tasks else _ABSENT for cell, pair in zip(rows[name], compared.values(), strict=True)]
    return table(title, {name: tuple(values) for name, values in rows.items()}, tuple(compared))


def compare_agents(measured: Sequence[Measured]) -> dict[str, Any]:
    """Return the comparison of the first agent with the second, by decoding; empty for a single agent."""
    if len(measured) < 2:
        return {}
    first, second = measured
    partly = any(report.stopped for agent in measured for report in agent.reports.values())
    return {way: compare(first.episodes[way], second.episodes[way], partly) for way in first.episodes}


def show_agents(measured: Sequence[Measured], compared: Mapping[str, Any], env_id: str, console: Console) -> None:
    """Print the reports of each agent, and the comparison."""
    shown_id = env_id.replace(SUITE, "") if read_mixture(env_id) else env_id.rpartition(":")[2]
    for agent in measured:
        names, title = list(agent.reports), f"{agent.model} in {shown_id}"
        # Seats of a game and environments of a mixture are side by side; sampled and greedy are below each other.
        apart = len(agent.reports[names[0]].environments)
        together = len(agent.seats) or (1 + apart if apart else len(names))
        for at in range(0, len(names), together):
            columns = {name.removeprefix(SUITE): agent.reports[name] for name in names[at : at + together]}
            console.print(report_table(title, columns))
        max_samples = max(report.samples for report in agent.reports.values())
        for column, report in agent.reports.items():
            if report.samples == max_samples > 1:
                console.print(k_table(report, column if agent.seats or apart else ""))
        if agent.tokens:
            speed = f"{agent.tokens:,} tokens in {agent.seconds:,.1f} s, {agent.tokens / agent.seconds:,.0f} a second"
            console.print(f"{agent.model}: {speed}", markup=False, highlight=False, soft_wrap=True)
        for stop in dict.fromkeys(report.stopped for report in agent.reports.values() if report.stopped):
            text = f"ended early: {stop}. The figures are about the {len(agent.all)} episodes played until then"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        for line in Causes.of(agent.all).lines():
            show_line(console, line)
        if agent.gains:
            gains = {way: gain for way, (gain, *_) in agent.gains.items()}
            console.print(comparison_table(f"{agent.model}: second attempts less first", gains))
            if missed := sum(count for _, count, _ in agent.gains.values()):
                message = f"{missed} second attempts had no critique to read"
                faults = [fault for *_, fault in agent.gains.values() if fault]
                message += f"; the last time that the judge gave up: {faults[-1]}" if faults else ""
                console.print(message, markup=False, highlight=False, soft_wrap=True)
    if compared:
        first, second = measured
        console.print(comparison_table(f"{first.model} less {second.model}", compared))


def agents_figures(measured: Sequence[Measured], compared: Mapping[str, Any]) -> dict[str, Any]:
    """Return all figures for JSON: the first agent's, and those of a second agent and of their comparison if any."""
    figures = _agent(measured[0])
    if compared:
        figures["against"] = _agent(measured[1])
        figures["comparison"] = {way: comparison_figures(comparison) for way, comparison in compared.items()}
    return figures


def report_figures(report: Report) -> dict[str, Any]:
    """Return a report for JSON."""
    figures = report.as_dict()
    if not _has_scored(report):
        figures |= dict.fromkeys(_OF_SCORED)
    of_k = {name: _known(estimate, ("value", "low", "high")) for name, estimate in report.at_k.items()}
    return figures | {"at_k": of_k}


def comparison_figures(difference: PairedDifference) -> dict[str, Any]:
    """Return a comparison for JSON."""
    return _known(asdict(difference), _OF_PAIRS)


def _agent(agent: Measured) -> dict[str, Any]:
    entry: dict[str, Any] = {"model": agent.model, "environment": dict(agent.environment), "seconds": agent.seconds}
    entry["tokens_per_second"] = agent.tokens / agent.seconds if agent.tokens else None
    if agent.seats:
        return entry | {"seats": {name: agent.figures(name) for name in agent.reports}}
    for way, (gain, missed, _) in agent.gains.items():
        entry |= {f"gain of {way}": comparison_figures(gain) | {"without_critique": missed}}
    first, *others = agent.reports
    return entry | agent.figures(first) | {way: agent.figures(way) for way in others}


def _per_task(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for episode in episodes:
        env, task = episode.start.key[:2]
        identity = ({"env": env} if env else {}) | {"task": task, "id": episode.attempt.task.id}
        row = rows.setdefault((env, task), {**identity, "success": [], "answers": [], "broken": 0})
        if episode.reward is None:
            row["broken"] += 1
        else:
            row["success"].append(episode.parts["success"])
            row["answers"].append(episode.attempt.answer)
    return list(rows.values())


def _known(figures: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures. If they are about no task (`tasks` is 0), those with these names are None."""
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
