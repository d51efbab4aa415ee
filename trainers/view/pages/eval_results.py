"""Evaluation results of a run on held-out tasks: before, during and after training, as far as they are recorded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.reading import parsed_json, regular_text
from palaestra.trainers.view.pages.episode_view import number


def measurements(run: Path) -> list[dict[str, Any]]:
    """Return the results in the order of steps: success with interval, sampled and, if it was measured, greedy."""
    before, summary = _object(run / "before.json"), _object(run / "summary.json")
    lines = _lines(run / "measured.jsonl")
    on_the_way = (_shown(f"step {line.get('step')}", line.get("step"), {"sampled": line}) for line in lines)
    last = summary.get("steps_taken", summary.get("steps"))
    after = _shown("after", last, summary.get("after"))
    # A last measurement during training equals the result after it, so only the latter is shown.
    results = [
        _shown("before", 0, before),
        *(result for result in on_the_way if result and not (after and result["step"] == last)),
    ]
    return [result for result in (*results, after) if result is not None]


def _shown(when: str, step: Any, figures: Any) -> dict[str, Any] | None:
    if not isinstance(figures, Mapping) or not isinstance(step, int) or isinstance(step, bool):
        return None
    sampled, greedy = (_interval(figures.get(way)) for way in ("sampled", "greedy"))
    return None if sampled is None else {"when": when, "step": step, "sampled": sampled, "greedy": greedy}


def _interval(report: Any) -> list[float] | None:
    values = [number(report.get(name)) for name in ("success", "low", "high")] if isinstance(report, Mapping) else []
    finite = [value for value in values if value is not None]
    return finite if len(finite) == 3 else None


def _object(path: Path) -> dict[str, Any]:
    try:
        content = parsed_json(regular_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    except OSError:
        return []
    lines = []
    for text in texts:
        try:
            line = parsed_json(text)
        except ValueError:  # The line is incomplete: its writer is at work, or was killed.
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines
