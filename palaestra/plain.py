"""Values as JSON and back, unchanged: what a task's data, answers and arguments may hold when they are written down.

JSON knows neither tuples nor bytes nor arrays, and turns the keys of a dict into text; such values are written as
`{"$": kind, "of": ...}`. Left out on purpose: objects of any other class. Restoring those would mean running code that
a file names, so they are refused by name.
"""

import base64
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from palaestra.errors import UsageError

_TAG = "$"


def to_plain(value: Any, where: str = "value") -> Any:
    """What `json` can write. `where` names the value in the error that refuses it."""
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _tagged("float", repr(float(value)))
    if isinstance(value, np.generic):
        return to_plain(value.item(), where)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: to_plain(item, f"{where}[{key!r}]") for key, item in value.items()}
        pairs = [[to_plain(key, where), to_plain(item, f"{where}[{key!r}]")] for key, item in value.items()]
        return _tagged("dict", pairs)
    if isinstance(value, list):
        return [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return _tagged("tuple", [to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)])
    if isinstance(value, set | frozenset):
        return _tagged(type(value).__name__, [to_plain(item, where) for item in sorted(value, key=repr)])
    if isinstance(value, bytes):
        return _tagged("bytes", base64.b64encode(value).decode())
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        return _tagged("array", [str(value.dtype), list(value.shape), to_plain(value.ravel().tolist(), where)])
    raise UsageError(
        f"{where} is of type {type(value).__name__}, which cannot be written to an episode file; expected None, bool, "
        "int, float, str, bytes, list, tuple, dict, set or a numeric array (give an object of yours as such values)"
    )


def from_plain(value: Any) -> Any:
    """The value that `to_plain` was given; a ValueError where a tag says nothing known."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: from_plain(item) for key, item in value.items()}
    kind = value[_TAG]
    content: Any = value.get("of")
    match kind:
        case "float":
            return float(content)
        case "dict":
            return {from_plain(key): from_plain(item) for key, item in content}
        case "tuple":
            return tuple(from_plain(item) for item in content)
        case "set" | "frozenset":
            members = (from_plain(item) for item in content)
            return set(members) if kind == "set" else frozenset(members)
        case "bytes":
            return base64.b64decode(content, validate=True)
        case "array":
            dtype, shape, items = content
            return np.array(from_plain(items), np.dtype(dtype)).reshape(shape)
    raise ValueError(f"the tag {kind!r} is unknown")


def from_pairs(texts: Iterable[str], what: str) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dict. A value that reads as JSON is that value, any other is text. `what` names them."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier() or key in found:
            expected = "each key once" if key in found else "KEY=VALUE"
            raise UsageError(f"{what} has {text!r}; expected {expected}, such as digits=2 or tasks=problems.jsonl")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _tagged(kind: str, content: Any) -> dict[str, Any]:
    return {_TAG: kind, "of": content}
