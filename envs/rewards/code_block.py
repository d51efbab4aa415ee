"""Finds the program in an agent's answer: the last fenced block of Python.

Left out: programs without a fence, and whether a program is valid.
"""

import re
from collections.abc import Iterator

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([\w+-]*)")
_PYTHON = ("python", "py", "python3")


def program_of(text: str | None) -> str | None:
    """Return the last block fenced as Python, or else the last without a language; None if there is no such block.

    If the fence is indented, as in a list, the same indentation is removed from the block's lines.
    """
    blocks = {language: (indent, body) for indent, language, body in _blocks((text or "").replace("\r\n", "\n"))}
    block = blocks.get("python", blocks.get(""))
    if block is None:
        return None
    indent, body = block
    return re.sub(rf"^[ \t]{{0,{len(indent)}}}", "", body, flags=re.MULTILINE) if indent else body


def _blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield indent, language and content of each fenced block. Each line is read once, since answers may be long."""
    lines = text.split("\n")
    closing: dict[str, list[int]] = {}
    """Line numbers on which each fence stands alone, the last line first."""
    for at in range(len(lines) - 1, 0, -1):
        if set(alone := lines[at].strip(" \t")) in ({"`"}, {"~"}):
            closing.setdefault(alone, []).append(at)
    begins = 0
    for at, line in enumerate(lines):
        if at < begins or (opened := _FENCE.match(line)) is None:
            continue
        ends = closing.get(opened[2], [])
        while ends and ends[-1] <= at:
            ends.pop()
        if ends:
            begins = ends[-1] + 1
            language = opened[3].lower()
            content = "".join(f"{content_line}\n" for content_line in lines[at + 1 : ends[-1]])
            yield opened[1], "python" if language in _PYTHON else language, content
