"""A window on a long text: wrapped lines, a limited number of tokens at a time, and search for a pattern.

An agent sees search results, pages and files in one form: "lines 1-40 of 312", then the lines. A token is counted as
four characters, because an environment has no tokenizer.
"""

from collections.abc import Iterator, Sequence

from palaestra.errors import ToolError

WIDTH = 100
"""Maximum characters of a line; longer ones are wrapped."""
TOKEN_CHARS = 4
MAX_FOUND = 20
"""Maximum number of matches that are shown; the others are counted."""


def wrapped(text: str) -> list[str]:
    """Return the lines of a text, none longer than WIDTH."""
    return [part for line in text.splitlines() for part in wrapped_line(line)]


def wrapped_line(line: str) -> list[str]:
    """Return one line as several of at most WIDTH characters, broken at blanks if possible. The first keeps the
    indentation."""
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
    """Return the lines from `first` to at most `last`, as many as fit in `tokens`. If these are not all lines, begin
    with a head such as "lines 1-40 of 312"."""
    if not lines:
        return "(nothing)"
    if not 1 <= first <= len(lines):
        raise ToolError(f"there is no line {first}; the lines are 1 to {len(lines)}")
    end = window_end(lines, first, tokens)
    if last is not None:
        end = min(end, max(last, first))
    text = "\n".join(lines[first - 1 : end])
    return text if (first, end) == (1, len(lines)) else f"lines {first}-{end} of {len(lines)}\n{text}"


def window_end(lines: Sequence[str], first: int, tokens: int) -> int:
    """Return the number of the last line of a window from `first` that fits in `tokens`; at least `first`."""
    return _last_fitting(lines, range(first, len(lines) + 1), tokens)


def window_begin(lines: Sequence[str], last: int, tokens: int) -> int:
    """Return the number of the first line of a window that ends at line `last`; for scrolling up."""
    return _last_fitting(lines, range(last, 0, -1), tokens)


def _last_fitting(lines: Sequence[str], numbers: range, tokens: int) -> int:
    """Return the last of these line numbers up to which the lines fit in `tokens`; at least the first one."""
    remaining, last = tokens * TOKEN_CHARS, numbers.start
    for number in numbers:
        remaining -= len(lines[number - 1]) + 1
        if remaining < 0:
            break
        last = number
    return last


def places(lines: Sequence[str], pattern: str) -> Iterator[int]:
    """Yield the numbers of the lines that contain `pattern`; upper and lower case are the same. It is a plain text,
    because a regular expression could run for hours."""
    needle = " ".join(pattern.split()).casefold()
    if not needle:
        raise ToolError("the pattern is empty; expected some words")
    return (number for number, line in enumerate(lines, 1) if needle in line.casefold())


def find(lines: Sequence[str], pattern: str) -> str:
    """Return the lines that contain a text, each with its number; at most MAX_FOUND."""
    line_numbers = list(places(lines, pattern))
    if not line_numbers:
        raise ToolError(f"no line holds {pattern[:80]!r}")
    matches = [f"{number}: {lines[number - 1].strip()}" for number in line_numbers[:MAX_FOUND]]
    more = f"\n({len(line_numbers) - MAX_FOUND} more lines)" if len(line_numbers) > MAX_FOUND else ""
    return "\n".join(matches) + more
