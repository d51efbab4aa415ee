"""Read the JSON files of a run, also while another process writes them, or after one was killed in the middle."""

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is missing, or holds no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that have a step; none if the file is missing."""
    return parse_steps(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else []


def parse_steps(text: str) -> list[dict[str, Any]]:
    """Return the lines of a text that are JSON objects with a step. An incomplete line is skipped."""
    lines = []
    for line in text.splitlines():
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("step"), int):
            lines.append(content)
    return lines
