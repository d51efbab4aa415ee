"""Comparing what a program gave with what was expected: printed text, and values of JSON.

Printed text is the same but for blanks at the ends of lines and empty lines at the end. Numbers may differ by a
tolerance, where there is one. Left out: order that does not matter, and any other judge of a problem's own.
"""

import math
from typing import Any


def same_output(printed: str, wanted: str, tolerance: float = 0.0) -> bool:
    """Whether two texts are the same but for blanks at the ends of lines, empty lines at the end, and `tolerance`."""
    ours, theirs = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (printed, wanted))
    if ours == theirs:
        return True
    if not tolerance or len(ours) != len(theirs):
        return False
    return all(_same_line(one, other, tolerance) for one, other in zip(ours, theirs, strict=True))


def _same_line(one: str, other: str, tolerance: float) -> bool:
    ours, theirs = one.split(), other.split()
    return len(ours) == len(theirs) and all(
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
    if tolerance and isinstance(found, int | float) and isinstance(wanted, int | float):
        return found == wanted or _close(float(found), float(wanted), tolerance)
    return type(found) is not Unlike and bool(found == wanted)


class Unlike:
    """What no JSON value equals: a set, bytes, an object."""


def listed(value: Any) -> Any:
    """A packed value as tests in JSON know it: tuples are lists, keys are text."""
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
    return Unlike()
