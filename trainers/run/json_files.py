"""Read the JSON files of a run, even while another process writes them, or after that process was killed."""

from pathlib import Path
from typing import Any

from palaestra.errors import UsageError
from palaestra.reading import parsed_json, regular_text


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if the file is missing, or holds no object."""
    try:
        content = parsed_json(regular_text(path))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file that have a `step`; an empty list if the file is missing."""
    try:
        return parse_steps(regular_text(path)) if path.exists() else []
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); was it edited?"
        ) from error


def parse_steps(text: str) -> list[dict[str, Any]]:
    """Return the lines of a text that are JSON objects with a step. An incomplete line is skipped."""
    lines = []
    for line in text.splitlines():
        try:
            content = parsed_json(line)
        except ValueError:
            continue
        if isinstance(content, dict) and isinstance(content.get("step"), int):
            lines.append(content)
    return lines
