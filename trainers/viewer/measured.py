"""What a run has measured on held-out tasks: before its training, on the way and after it, as far as files say so."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.trainers.viewer.entry import number


def measurements(run: Path) -> list[dict[str, Any]]:
    """In the order of their steps; of each the success with its interval, sampled and, where it was played, greedy."""
    before, summary = _object(run / "before.json"), _object(run / "summary.json")
    lines = _lines(run / "measured.jsonl")
    on_the_way = (_shown(f"step {line.get('step')}", line.get("step"), {"sampled": line}) for line in lines)
    last = summary.get("steps_taken", summary.get("steps"))
    after = _shown("after", last, summary.get("after"))
    # Where the run was measured on the way, the last line says the same as the figures after it.
    shown = [_shown("before", 0, before), *(one for one in on_the_way if one and not (after and one["step"] == last))]
    return [one for one in (*shown, after) if one is not None]


def _shown(when: str, step: Any, figures: Any) -> dict[str, Any] | None:
    if not isinstance(figures, Mapping) or not isinstance(step, int) or isinstance(step, bool):
        return None
    sampled, greedy = (_interval(figures.get(way)) for way in ("sampled", "greedy"))
    return None if sampled is None else {"when": when, "step": step, "sampled": sampled, "greedy": greedy}


def _interval(report: Any) -> list[float] | None:
    values = [number(report.get(name)) for name in ("success", "low", "high")] if isinstance(report, Mapping) else []
    known = [value for value in values if value is not None]
    return known if len(known) == 3 else None


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # Half a line, of a writer at work or of one that was killed.
            continue
        if isinstance(line, dict):
            found.append(line)
    return found
