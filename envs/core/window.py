"""A window on a long text: wrapped lines, so many tokens at a time, and where a pattern occurs.

Search results, pages and files are all shown to an agent through it, in one form: "lines 1-40 of 312", then the lines.
Tokens are counted as four letters each, since an environment knows no tokenizer.
"""

from collections.abc import Iterator, Sequence

from palaestra.errors import ToolError

WIDTH = 100
"""Characters of a line; longer ones are wrapped."""
TOKEN_CHARS = 4
MAX_FOUND = 20
"""Places of a pattern that are shown; the others are counted."""


def wrapped(text: str) -> list[str]:
    """The lines of a text, none longer than WIDTH."""
    return [part for line in text.splitlines() for part in wrapped_line(line)]


def wrapped_line(line: str) -> list[str]:
    """One line as several, broken at blanks where there are any; its indentation stays with the first."""
    parts, at = [], 0
    while len(line) - at > WIDTH:
        cut = line.rfind(" ", at + 1, at + WIDTH + 1)
        if cut > at and " " not in line[cut + 1 : cut + WIDTH + 2] and len(line) - cut > WIDTH + 1:
            cut = -1  # The word behind it fits on no line: it is broken anyway.
        end = cut if cut > at else at + WIDTH
        parts.append(line[at:end])
        at = end + (cut > at)
    if at < len(line) or not parts:
        parts.append(line[at:])
    return parts


def view(lines: Sequence[str], first: int = 1, tokens: int = 1024, last: int | None = None) -> str:
    """The window that begins at line `first`, with its place; up to line `last`, or as many as fit in `tokens`."""
    if not lines:
        return "(nothing)"
    if not 1 <= first <= len(lines):
        raise ToolError(f"there is no line {first}; the lines are 1 to {len(lines)}")
    end = window_end(lines, first, tokens)
    if last is not None:
        end = min(end, max(last, first))
    shown = "\n".join(lines[first - 1 : end])
    return shown if (first, end) == (1, len(lines)) else f"lines {first}-{end} of {len(lines)}\n{shown}"


def window_end(lines: Sequence[str], first: int, tokens: int) -> int:
    """The last line that still fits; at least the first one."""
    room = tokens * TOKEN_CHARS
    for number in range(first, len(lines) + 1):
        room -= len(lines[number - 1]) + 1
        if room < 0:
            return max(number - 1, first)
    return len(lines)


def window_begin(lines: Sequence[str], last: int, tokens: int) -> int:
    """The first line of the window that ends at line `last`: for scrolling up."""
    room = tokens * TOKEN_CHARS
    for number in range(last, 0, -1):
        room -= len(lines[number - 1]) + 1
        if room < 0:
            return min(number + 1, last)
    return 1


def places(lines: Sequence[str], pattern: str) -> Iterator[int]:
    """The numbers of the lines that hold a text, in any case. No regular expression: some of those take hours."""
    wanted = " ".join(pattern.split()).casefold()
    if not wanted:
        raise ToolError("the pattern is empty; expected some words")
    return (number for number, line in enumerate(lines, 1) if wanted in line.casefold())


def find(lines: Sequence[str], pattern: str) -> str:
    """Where a text occurs: each line with its number."""
    found = list(places(lines, pattern))
    if not found:
        raise ToolError(f"no line holds {pattern[:80]!r}")
    shown = [f"{number}: {lines[number - 1].strip()}" for number in found[:MAX_FOUND]]
    more = f"\n({len(found) - MAX_FOUND} more lines)" if len(found) > MAX_FOUND else ""
    return "\n".join(shown) + more
