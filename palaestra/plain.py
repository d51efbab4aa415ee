"""Convert the data and answers of tasks and the arguments of calls to values that JSON can hold; refuse all others.

Left out: how values are written (`tagged`), and objects of any other class. To restore such an object, code that a file
names would have to run, so it is refused with an error that names it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from palaestra.errors import UsageError
from palaestra.tagged import pack, unpack

_BOOLEANS = {"True": True, "False": False}


def to_plain(value: Any, where: str = "value") -> Any:
    """Return a value that `json` can write. `where` names the value in the error that refuses it."""

    def refuse(part: Any, depth: int) -> Any:
        raise UsageError(
            f"{_path(value, part, where)} is of type {type(part).__name__}, which cannot be written to an episode "
            "file; expected None, bool, int, float, str, bytes, list, tuple, dict, set, a date, an exact number or a "
            "numeric array (give an object of yours as such values)"
        )

    return pack(value, refuse)


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` was given. Raise a ValueError for an unknown tag."""

    def refuse(kind: Any, content: Any) -> Any:
        raise ValueError(f"the tag {kind!r} is unknown")

    return unpack(value, refuse)


def _path(value: Any, part: Any, where: str) -> str:
    """Return the path of a part inside a value; `where` itself if it cannot be found."""
    waiting, visited = [(value, where)], set[int]()
    while waiting:
        item, path = waiting.pop()
        if item is part:
            return path
        if id(item) not in visited and isinstance(item, Mapping | list | tuple | set | frozenset):
            visited.add(id(item))
            items = item.items() if isinstance(item, Mapping) else enumerate(item)
            waiting += [(item, f"{path}[{name!r}]") for name, item in items]
    return where


def from_pairs(texts: Iterable[str], what: str) -> dict[str, Any]:
    """Return `KEY=VALUE` texts as a dict. A JSON value, True and False are decoded, others stay text.

    `what` names them in errors.
    """
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        # A key that looks like an option would become one where the words of a command are copied.
        if not equals or not key.rpartition(".")[2].isidentifier() or key.startswith("-") or key in pairs:
            expected = "each key once" if key in pairs else "KEY=VALUE"
            raise UsageError(f"{what} has {text!r}; expected {expected}, such as digits=2 or tasks=problems.jsonl")
        pairs[key] = _decoded(value)
    return pairs


def as_pair(key: str, value: Any) -> str:
    """Return `KEY=VALUE` as `from_pairs` reads it back, in printable characters."""
    text = value if isinstance(value, str) and _decoded(value) is value else json.dumps(to_plain(value))
    return f"{key}={text}" if text.isprintable() else f"{key}={json.dumps(text)}"


def _decoded(text: str) -> Any:
    """Return the value of a text that is JSON, or one of Python's words for a boolean; any other text as it is."""
    try:
        return _BOOLEANS[text] if text in _BOOLEANS else json.loads(text)
    except ValueError:
        return text
