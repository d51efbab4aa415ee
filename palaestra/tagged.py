"""Convert values to JSON and back without a change. Values of types that JSON lacks are written with a tag.

`{"$": kind, "of": content}` stands for tuples, sets, bytes, arrays, dates, exact numbers and the like. This module
imports only the standard library, since its source is also sent to sandboxes. Left out: objects of any other class. The
callers pass a function for these: `plain` refuses them, graders convert them in their own ways.
"""

import base64
import importlib
import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 100
_TAG = "$"
_LONG_BITS = 8192
"""Bits above which an integer is written in hexadecimal: Python reads at most 4,300 decimal digits."""
_SAME = (str, bool, type(None))
_NUMBERS = re.compile(r"bool|u?int\d{1,2}|float\d{2}|complex\d{2,3}")
_TEXTS = re.compile(r"[<>=]U(\d{1,9})")


class NestedTooDeeply:
    """Replaces a value that is nested inside more than MAX_DEPTH others."""


Other = Callable[[Any, int], Any]
"""Function that converts a value of another class at its depth, or reads the content of an unknown tag."""
_EXACT: dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "Fraction": (Fraction, lambda one: [one.numerator, one.denominator], lambda of: Fraction(*map(int, of))),
    "Decimal": (Decimal, str, lambda of: Decimal(str(of))),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (
        timedelta, lambda one: [one.days, one.seconds, one.microseconds], lambda of: timedelta(*map(int, of)),
    ),
    "range": (range, lambda one: [one.start, one.stop, one.step], lambda of: range(*map(int, of))),
    "bytes": (
        bytes | bytearray,  # type: ignore[dict-item]
        lambda one: base64.b64encode(one).decode(),
        lambda of: base64.b64decode(of, validate=True),
    ),
}  # fmt: skip
"""Maps a type's name to the type, the function that writes a value, and the function that reads it."""
_HOLDERS: dict[str, tuple[type[Any], Callable[[list[Any]], Any]]] = {
    "tuple": (tuple, tuple), "set": (set, set), "frozenset": (frozenset, frozenset), "deque": (deque, deque),
    "keys": (type({}.keys()), lambda items: dict.fromkeys(items).keys()),
    "values": (type({}.values()), lambda items: dict(enumerate(items)).values()),
    "items": (type({}.items()), lambda items: {key: value for [key, value] in filter(_is_pair, items)}.items()),
}  # fmt: skip
"""Maps a name to a container type, and the function that creates it from a list of values."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


def tagged(kind: str, content: Any) -> dict[str, Any]:
    return {_TAG: kind, "of": content}


def pack(value: Any, other: Other, depth: int = 0) -> Any:
    """Return the value in a form that `json` can write. `other` converts values of other classes, given their depth."""
    if type(value) in _SAME:
        return value
    if depth > MAX_DEPTH:
        return other(NestedTooDeeply(), depth)
    array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    if not array and getattr(value, "shape", None) == () and hasattr(value, "item"):  # A number of an array library.
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _LONG_BITS else tagged("int", hex(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else tagged("float", str(float(value)))
    if isinstance(value, complex):
        return tagged("complex", [pack(value.real, other), pack(value.imag, other)])
    if isinstance(value, list):
        return [pack(item, other, depth + 1) for item in value]
    if isinstance(value, Mapping):
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: pack(item, other, depth + 1) for key, item in value.items()}
        pairs = [[pack(key, other, depth + 1), pack(item, other, depth + 1)] for key, item in value.items()]
        return tagged("dict", pairs)
    for name, (holder, _) in _HOLDERS.items():
        if isinstance(value, holder):
            items = [pack(item, other, depth + 1) for item in value]
            return tagged(name, sorted(items, key=json.dumps) if isinstance(value, set | frozenset) else items)
    for name, (exact, write, _) in _EXACT.items():
        if isinstance(value, exact):
            return tagged(name, write(value))
    if array and (_NUMBERS.fullmatch(str(value.dtype)) or _TEXTS.fullmatch(str(value.dtype))):
        return tagged("array", [str(value.dtype), list(value.shape), pack(value.ravel().tolist(), other)])
    return other(value, depth)


def unpack(value: Any, other: Other) -> Any:
    """Return the value that `pack` was given. Other input raises ValueError, LookupError, TypeError or ArithmeticError.

    The input may be hostile: no result is much larger than its text.
    """
    if isinstance(value, list):
        return [unpack(item, other) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: unpack(item, other) for key, item in value.items()}
    kind, content = value[_TAG], value["of"]
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(unpack(content[0], other), unpack(content[1], other))
    if kind == "dict":
        return {unpack(key, other): unpack(item, other) for key, item in content}
    if kind == "array":
        return _array(*content)
    if isinstance(kind, str) and kind in _HOLDERS:  # Its content is a list: an unpacked range has no size.
        return _HOLDERS[kind][1]([unpack(item, other) for item in content])
    if isinstance(kind, str) and kind in _EXACT:
        return _EXACT[kind][2](content)
    return other(kind, content)


def _array(dtype: str, shape: list[int], items: list[Any]) -> Any:
    numpy = importlib.import_module("numpy")
    values = [unpack(item, lambda kind, content: None) for item in items]
    texts = _TEXTS.fullmatch(dtype)
    expected_type: Any = str if texts else int | float | complex
    if not (texts or _NUMBERS.fullmatch(dtype)) or not all(isinstance(value, expected_type) for value in values):
        raise ValueError(f"an array of {dtype} holds something else")
    if texts and int(texts[1]) * len(values) > 1000 * (1 + len(values) + sum(map(len, values))):
        raise ValueError(f"an array of {dtype} would be far larger than its text")
    return numpy.array(values, dtype=dtype).reshape([int(size) for size in shape])
