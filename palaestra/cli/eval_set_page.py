"""The report of `palaestra eval-set` as one HTML page, which needs no script, no network and no other file."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from palaestra.causes import BROKEN, Causes
from palaestra.trainers.evaluation.statistics import PairedDifference, compare

_Cells = Mapping[tuple[str, str], Mapping[str, Any]]
_HEAD = """<!doctype html><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 0 0 2rem } td, th { padding: .3rem .8rem; text-align: left }
th { border-bottom: 1px solid #999 } td { border-bottom: 1px solid #ddd; white-space: nowrap }
.bar { position: relative; display: inline-block; width: 9rem; height: .8rem; background: #eee }
.bar i { position: absolute; top: 0; bottom: 0; background: #9bc } .bar b { position: absolute; top: -2px; bottom: -2px;
width: 2px; background: #124 } .fault { color: #a00; white-space: normal }
</style>
"""


def page(title: str, cells: Sequence[tuple[str, str]], measured: _Cells, failed: Mapping[tuple[str, str], str]) -> str:
    """Return the page: a table for each environment, with a row for each model and each way it was measured."""
    parts = [_HEAD, f"<title>{escape(title)}</title><h1>{escape(title)}</h1>"]
    parts.append(
        "<p>Success with 95 % intervals over tasks, and the difference to the first model, paired by task.</p>"
    )
    for environment in dict.fromkeys(environment for environment, _ in cells):
        heads = ("model", "", "success", "", "less the first", "p", "tasks", "calls", "broken", "tokens/s")
        parts.append(f"<h2>{escape(environment)}</h2><table><tr>{''.join(f'<th>{head}' for head in heads)}")
        models = [model for of, model in cells if of == environment]
        for model in models:
            if (cell := measured.get((environment, model))) is None:
                fault = failed.get((environment, model), "not measured yet")
                parts.append(f'<tr><td>{escape(model)}<td class="fault" colspan="9">{escape(fault)}')
                continue
            differences = comparisons(measured, environment, model, models[0])
            for what, report in measurements(cell).items():
                parts.append(_row(model, what, report, differences.get(what), cell["tokens_per_second"]))
        parts.append("</table>")
    return "\n".join(parts) + "\n"


def measurements(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the reports of an agent by what was measured: a way of decoding, an environment of a mixture, a seat."""
    if "seats" in figures:
        return dict(figures["seats"])
    first = {"sampled" if figures["temperature"] else "greedy": dict(figures)}
    return first | {name: part for name, part in figures.items() if isinstance(part, dict) and "per_task" in part}


def comparisons(measured: _Cells, environment: str, model: str, first: str) -> dict[str, PairedDifference]:
    """Return the differences of a model to the first one in an environment, over the tasks that both have played."""
    if model == first or (environment, first) not in measured:
        return {}
    first_parts, parts = (measurements(measured[environment, name]) for name in (first, model))
    differences = {}
    for what in parts.keys() & first_parts.keys():
        left, right = _successes(parts[what]), _successes(first_parts[what])
        common = left.keys() & right.keys()
        differences[what] = compare({task: left[task] for task in common}, {task: right[task] for task in common})
    return differences


def success_text(report: Mapping[str, Any]) -> str:
    """Return the success of a report with its interval; a dash if nothing was scored."""
    if report["success"] is None:
        return "-"
    return f"{report['success']:.3f} [{report['low']:.2f}, {report['high']:.2f}]"


def difference_text(difference: PairedDifference | None) -> str:
    """Return a difference with its interval; "" if there is none."""
    if difference is None or not difference.tasks:
        return ""
    return f"{difference.difference:+.3f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def _successes(report: Mapping[str, Any]) -> dict[tuple[str, int], list[float]]:
    return {(row.get("env", ""), row["task"]): row["success"] for row in report["per_task"]}


def _row(
    model: str, what: str, report: Mapping[str, Any], difference: PairedDifference | None, speed: float | None
) -> str:
    bar = ""
    if report["success"] is not None:
        low, high, value = (100 * report[name] for name in ("low", "high", "success"))
        inner = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i><b style="left:{value:.1f}%"></b>'
        bar = f'<span class="bar">{inner}</span>'
    p_value = f"{difference.p_value:.3f}" if difference is not None and difference.tasks else ""
    calls = "-" if report["calls"] is None else f"{report['calls']:.2f}"
    tasks = f"{report['tasks']}{' (ended early)' if report['stopped'] else ''}"
    tokens = "-" if speed is None else f"{speed:,.0f}"
    causes = Causes([report.get("causes")]).of_kind(BROKEN)
    cells = (
        escape(model),
        escape(what),
        success_text(report),
        bar,
        difference_text(difference),
        p_value,
        tasks,
        calls,
        f'<span title="{escape(causes)}">{report["broken"]}</span>',
        tokens,
    )
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells)
