"""The tables of docs/results.md, written from the committed files alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cases import CASES, SKIPPED
from training_runs import RUNS, GrpoRun

_STAGES, _WAYS = ("before", "after"), ("sampled", "greedy")
_MISSING = "not measured"


def write_page(page: Path, results: Path) -> None:
    """Write each table between its marks."""
    text = page.read_text("utf-8")
    tables = {"success": success_table, "conduct": conduct_table, "runs": runs_table}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by make results -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise SystemExit(f"{page} lacks the lines {begin!r} and {end!r}, between which a table is written")
        text = f"{before}{begin}\n\n{table(results)}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def success_table(results: Path) -> str:
    """Return what each agent reaches in each environment."""
    lines = [
        "| environment | a guess | demonstrator | tiny agent, after GRPO | SmolLM2 as it comes | "
        "after 40 demonstrations | after GRPO |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        found = _read(results / f"{case.name}.json")
        trained = [_trained(results, case.name, agent) for agent in ("tiny", "smollm2")]
        played = [_both(found.get(stage)) for stage in _STAGES] if found else [_MISSING] * 2
        scripted = [_interval(found.get("guess")), _number(found.get("demonstrator", {}).get("success"))]
        cells = [case.title, *(scripted if found else [_MISSING] * 2), trained[0], *played, trained[1]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines + [f"| `{name}` | skipped: {reason} |" for name, reason in SKIPPED.items()])


def conduct_table(results: Path) -> str:
    """Return how SmolLM2 plays in each environment: its calls, its turns and what they cost."""
    lines = ["| environment | calls well formed | tokens a turn | CPU s an episode |", "|---|---|---|---|"]
    for case in CASES:
        if not (found := _read(results / f"{case.name}.json")):
            continue
        sampled = [found[stage]["sampled"] for stage in _STAGES if stage in found]
        cells = [
            ", ".join(f"{_number(at['well_formed'])} of {at['calls']:.1f}" for at in sampled),
            ", ".join(f"{at['tokens_a_turn']:.0f}" for at in sampled),
            ", ".join(f"{at['cpu_seconds_an_episode']:.1f}" for at in sampled),
        ]
        lines.append(f"| `{case.name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def runs_table(results: Path) -> str:
    """Return each run with GRPO: its command, and its success before and after."""
    lines = ["| run | before GRPO | after GRPO | steps | CPU s |", "|---|---|---|---|---|"]
    for run in RUNS:
        cells = [f"`{run.command}`", _MISSING]
        if found := _read(_path(results, run)):
            cells[1:] = [_both(found[stage]) for stage in _STAGES]
            cells += [str(found["steps"]), f"{found['cpu_seconds']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _trained(results: Path, env: str, agent: str) -> str:
    """Return the success of the first run of an agent that was measured; "" if none is planned."""
    runs = [run for run in RUNS if (run.env, run.agent) == (env, agent)]
    found = [figures["after"] for run in runs if (figures := _read(_path(results, run)))]
    return _both(found[0]) if found else _MISSING if runs else ""


def _path(results: Path, run: GrpoRun) -> Path:
    return results / "runs" / f"{run.name}.json"


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def _both(stage: Mapping[str, Any] | None) -> str:
    """Return the sampled success above the greedy one."""
    return "<br>".join(_interval(stage[way]) for way in _WAYS) if stage else ""


def _interval(at: Mapping[str, float] | None) -> str:
    if at is None:
        return "none"
    value, low, high = (_number(at[name]) for name in ("success", "low", "high"))
    return f"{value} ({low} to {high})"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}".removeprefix("0") if 0 < value < 1 else f"{value:.0f}"
