"""What a tool's docstring says: its summary, and one line for each parameter.

Reads Google's `Args:` and numpy's `Parameters` sections; anything else is summary. Left out: types written in
docstrings. The signature has them.
"""

import inspect
import re

_GOOGLE = re.compile(r"^(args|arguments|parameters):\s*$", re.IGNORECASE)
_SECTION = re.compile(r"^(returns?|raises|yields|examples?|notes?|see also|warnings?):?\s*$", re.IGNORECASE)
_GOOGLE_ITEM = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ITEM = re.compile(r"^(\w+)\s*(?::.*)?$")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The summary in one line, and what each parameter is."""
    lines = inspect.cleandoc(text or "").splitlines()
    summary: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        underlined = at + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[at + 1]) is not None
        if _GOOGLE.match(lines[at]):
            at = _read_items(lines, at + 1, _GOOGLE_ITEM, parameters)
        elif underlined and lines[at].strip().lower() == "parameters":
            at = _read_items(lines, at + 2, _NUMPY_ITEM, parameters)
        elif underlined or _SECTION.match(lines[at]):
            break  # What a tool returns, the agent sees.
        else:
            summary.append(lines[at].strip())
            at += 1
    return " ".join(" ".join(summary).split()), parameters


def _read_items(lines: list[str], at: int, item: re.Pattern[str], found: dict[str, str]) -> int:
    """Collect `name: text` items and their indented continuations; returns where the section ends."""
    depth: int | None = None
    name = ""
    while at < len(lines):
        line = lines[at]
        if line.strip():
            indent = len(line) - len(line.lstrip())
            if item is _GOOGLE_ITEM and indent == 0:
                break
            if item is _NUMPY_ITEM and indent == 0 and (_SECTION.match(line) or lines[at + 1 : at + 2] == [""]):
                break
            depth = indent if depth is None else depth
            match = item.match(line.strip()) if indent == depth else None
            if match:
                name = match[1]
                found[name] = match[2] if item is _GOOGLE_ITEM else ""
            elif name:
                found[name] = f"{found[name]} {line.strip()}".strip()
        at += 1
    return at
