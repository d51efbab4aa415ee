"""Compares a program's output with the expected one, as printed text or JSON values, and shows both to a person.

Blanks at line ends and empty lines at the end do not count. Lines that contain only numbers are compared as numbers:
exactly (0.5 is 0.500000), or within a tolerance if there is one. Left out: outputs whose order does not matter, and
other judges that a problem brings along.
"""

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from palaestra.envs.rewards.remote_calls import packed, unpacked

MAX_SHOWN_CHARS = 300
"""Characters of an input, an expected output and an actual output in the explanation of a failed test."""
MAX_READ_CHARS = 3000
"""Longest call or reply that is parsed and shown as Python; a longer one is shown as text, which costs less."""

FORGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError)
"""Exceptions that reading a forged reply of a program may raise."""
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
"""Written form of a number; 007 is text, which may be a word of a problem about digits."""


def same_output(printed: str, expected: str, tolerance: float = 0.0) -> bool:
    """Return whether two texts are the same but for blanks at line ends, empty last lines, and how numbers are written.

    With a `tolerance` numbers may differ by it, also on lines with words.
    """
    printed_lines, expected_lines = (
        [line.rstrip() for line in text.rstrip().splitlines()] for text in (printed, expected)
    )
    if printed_lines == expected_lines:
        return True
    return len(printed_lines) == len(expected_lines) and all(
        printed_line == other or _same_line(printed_line, other, tolerance)
        for printed_line, other in zip(printed_lines, expected_lines, strict=True)
    )


def _same_line(printed: str, expected: str, tolerance: float) -> bool:
    printed_words, expected_words = printed.split(), expected.split()
    if len(printed_words) != len(expected_words):
        return False
    numbers = bool(printed_words) and all(map(_NUMBER.fullmatch, (*printed_words, *expected_words)))
    if numbers and [*map(Decimal, printed_words)] == [*map(Decimal, expected_words)]:
        return True
    return bool(tolerance) and all(
        a == b or _close(_float(a), _float(b), tolerance) for a, b in zip(printed_words, expected_words, strict=True)
    )


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _close(a: float, b: float, tolerance: float) -> bool:
    return math.isfinite(a) and math.isfinite(b) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def same_value(value: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Return whether two JSON values are equal, numbers within `tolerance`."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(
            same_value(a, b, tolerance) for a, b in zip(value, expected, strict=True)
        )
    if tolerance and isinstance(value, int | float | Decimal | Fraction) and isinstance(expected, int | float):
        return value == expected or _close(float(value), float(expected), tolerance)
    return type(value) is not Unlike and bool(value == expected)


class Unlike:
    """A value that equals no JSON value: a set, bytes, an array, an iterator, an object."""


def as_json(value: Any) -> Any:
    """Return a packed value as JSON tests write it: tuples are lists, keys are text, exact numbers are numbers."""
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: as_json(item) for key, item in value.items()}
    if value["$"] == "tuple":
        return as_json(value["of"])
    if value["$"] == "dict":
        return {str(key): as_json(item) for key, item in value["of"] if isinstance(key, str | int)}
    if value["$"] in ("int", "Fraction", "Decimal") or (value["$"] == "array" and value["of"][1] == []):
        number = unpacked(value)
        return number.item() if hasattr(number, "item") else number
    return Unlike()


def clipped(value: Any, written: Callable[[Any], str] = str) -> str:
    """Return a value as text, cut to MAX_SHOWN_CHARS characters with the full size added.

    A text is cut before `written` is called, because it may be megabytes.
    """
    size = len(value) if isinstance(value, str) else 0
    try:
        text = written(value[:MAX_SHOWN_CHARS] if size else value)
    except ValueError:  # An integer of more digits than Python writes.
        text = json.dumps(packed(value))
    if max(size, len(text)) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}... ({max(size, len(text)):,} characters)"


def differing(printed: str, expected: str, tolerance: float = 0.0) -> dict[str, str]:
    """Return two outputs from the first line on in which they differ, or as a whole if no line differs."""
    printed_lines, expected_lines = (text.splitlines(keepends=True) for text in (printed, expected))
    pairs = enumerate(zip(printed_lines, expected_lines, strict=False))
    unlike = (at for at, (a, b) in pairs if a.rstrip() != b.rstrip() and not same_output(a, b, tolerance))
    begins = next(
        unlike, 0 if len(printed_lines) == len(expected_lines) else min(len(printed_lines), len(expected_lines))
    )
    tails = [clipped("".join(lines[begins:]), repr) for lines in (expected_lines, printed_lines)]
    return {"line": f"{begins + 1} and the following" if begins else "", "expected": tails[0], "got": tails[1]}


def called(function: str, arguments: str) -> str:
    """Return a call with the arguments that were sent, written as Python."""

    def written(sent: Any) -> str:
        keywords = [f"{name}={unpacked(value)!r}" for name, value in sent["kwargs"].items()]
        return f"{function}({', '.join([*(repr(unpacked(value)) for value in sent['args']), *keywords])})"

    return _read(arguments, written)


def replied(reply: str | None) -> str:
    """Return a program's reply to a call: a value written as Python, or the exception that it raised."""

    def written(sent: Any) -> str:
        if "raised" in sent:
            return f"raised {sent['raised']}: {sent['said']}".removesuffix(": ")
        return repr(unpacked(sent["value"]))

    return _read(reply or "", written)


def _read(text: str, written: Callable[[Any], str]) -> str:
    """Return a sent text in readable form; a long or unreadable one is returned as it is, clipped."""
    try:
        return clipped(written(json.loads(text)) if len(text) <= MAX_READ_CHARS else text)
    except FORGED:
        return clipped(text)
