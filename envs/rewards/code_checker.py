"""Comparing what a program gave with what was expected, printed text and values of JSON, and showing it to a person.

Printed text is the same but for blanks at the ends of lines and empty lines at the end. Lines of numbers alone are
compared as numbers, exactly (0.5 is 0.500000), or within a tolerance, where there is one. Left out: order that does not
matter, and any other judge of a problem's own.
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
"""Of an input, of what was expected and of what came, in the explanation of a failed test."""
MAX_READ_CHARS = 3000
"""Longest call or answer that is read to be shown as Python writes it: whatever it holds, that costs little."""

FORGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError)
"""What it may raise to read a reply that a program forged."""
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
"""As a number is written; 007 is text, which may be a word of a problem about digits."""


def same_output(printed: str, wanted: str, tolerance: float = 0.0) -> bool:
    """Whether two texts are the same but for blanks at line ends, empty lines at the end, and how numbers are written.

    With a `tolerance` numbers may be off by it, among words too.
    """
    ours, theirs = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (printed, wanted))
    if ours == theirs:
        return True
    return len(ours) == len(theirs) and all(
        one == other or _same_line(one, other, tolerance) for one, other in zip(ours, theirs, strict=True)
    )


def _same_line(one: str, other: str, tolerance: float) -> bool:
    ours, theirs = one.split(), other.split()
    if len(ours) != len(theirs):
        return False
    numbers = bool(ours) and all(map(_NUMBER.fullmatch, (*ours, *theirs)))
    if numbers and [*map(Decimal, ours)] == [*map(Decimal, theirs)]:
        return True
    return bool(tolerance) and all(
        a == b or _close(_float(a), _float(b), tolerance) for a, b in zip(ours, theirs, strict=True)
    )


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _close(one: float, other: float, tolerance: float) -> bool:
    return (
        math.isfinite(one) and math.isfinite(other) and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    )


def same_value(found: Any, wanted: Any, tolerance: float = 0.0) -> bool:
    """Whether two values of JSON are equal, numbers within `tolerance`."""
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(
            same_value(a, b, tolerance) for a, b in zip(found, wanted, strict=True)
        )
    if tolerance and isinstance(found, int | float | Decimal | Fraction) and isinstance(wanted, int | float):
        return found == wanted or _close(float(found), float(wanted), tolerance)
    return type(found) is not Unlike and bool(found == wanted)


class Unlike:
    """What no JSON value equals: a set, bytes, an array, an iterator, an object."""


def listed(value: Any) -> Any:
    """A packed value as tests in JSON know it: tuples are lists, keys are text, exact numbers are numbers."""
    if isinstance(value, list):
        return [listed(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: listed(one) for key, one in value.items()}
    if value["$"] == "tuple":
        return listed(value["of"])
    if value["$"] == "dict":
        return {str(key): listed(one) for key, one in value["of"] if isinstance(key, str | int)}
    if value["$"] in ("int", "Fraction", "Decimal") or (value["$"] == "array" and value["of"][1] == []):
        found = unpacked(value)
        return found.item() if hasattr(found, "item") else found
    return Unlike()


def clipped(value: Any, written: Callable[[Any], str] = str) -> str:
    """The head of a value as it is written, and how much there is of it. A text is cut before: it may be megabytes."""
    size = len(value) if isinstance(value, str) else 0
    try:
        text = written(value[:MAX_SHOWN_CHARS] if size else value)
    except ValueError:  # An integer of more digits than Python writes.
        text = json.dumps(packed(value))
    if max(size, len(text)) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}... ({max(size, len(text)):,} characters)"


def differing(printed: str, wanted: str, tolerance: float = 0.0) -> dict[str, str]:
    """Two outputs from the first line on in which they differ; whole where none does."""
    ours, theirs = (text.splitlines(keepends=True) for text in (printed, wanted))
    pairs = enumerate(zip(ours, theirs, strict=False))
    unlike = (at for at, (a, b) in pairs if a.rstrip() != b.rstrip() and not same_output(a, b, tolerance))
    begins = next(unlike, 0 if len(ours) == len(theirs) else min(len(ours), len(theirs)))
    rest = [clipped("".join(lines[begins:]), repr) for lines in (theirs, ours)]
    return {"line": f"{begins + 1} and the following" if begins else "", "expected": rest[0], "got": rest[1]}


def called(function: str, arguments: str) -> str:
    """A call as Python writes it, of the arguments that were sent."""

    def written(found: Any) -> str:
        named = [f"{name}={unpacked(value)!r}" for name, value in found["kwargs"].items()]
        return f"{function}({', '.join([*(repr(unpacked(value)) for value in found['args']), *named])})"

    return _read(arguments, written)


def replied(reply: str | None) -> str:
    """What a program answered to a call: a value as Python writes it, or what it raised."""

    def written(found: Any) -> str:
        if "raised" in found:
            return f"raised {found['raised']}: {found['said']}".removesuffix(": ")
        return repr(unpacked(found["value"]))

    return _read(reply or "", written)


def _read(text: str, written: Callable[[Any], str]) -> str:
    """What was sent, as people read it; where it is long, or no such thing, as it came."""
    try:
        return clipped(written(json.loads(text)) if len(text) <= MAX_READ_CHARS else text)
    except FORGED:
        return clipped(text)
