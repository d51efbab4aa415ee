"""Texts of an episode for people and for Gymnasium: observations, infos and their arrays, a printed transcript.

Left out: chat templates. Only `agents.chat` turns messages into a model's prompt.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Message
from palaestra.shortening import visible

_INTEGERS = ("turn", "task")
_INTEGER, _NUMBER, _OBJECT = np.dtype(np.int64), np.dtype(np.float64), np.dtype(object)


def joined(messages: Iterable[Message]) -> str:
    """Return the texts of messages as one observation, one after another."""
    return "\n".join([str(message.get("content") or "") for message in messages])


def fresh(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Return copies of messages, so that a caller who changes an info does not change the record."""
    return tuple(map(dict.copy, messages))


def transcript(messages: Sequence[Message]) -> str:
    """Return messages with their roles, one after another, without control characters of a terminal."""
    return "\n".join(f"{_label(message)}: {visible(str(message.get('content') or ''))}" for message in messages)


def _label(message: Message) -> str:
    name = message.get("name")
    return f"{message['role']} ({visible(str(name))})" if name else str(message["role"])


def stack(slots: Sequence[int], infos: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the infos of `slots` (ascending) in Gymnasium's form: an array of `size` values for each key, and a mask
    `_key`.

    A mask is True for these slots. "parts" becomes a dict of such arrays, one for each part of the reward. An array's
    type depends only on its key.
    """
    arrays: dict[str, Any] = {}
    at = slice(None) if len(slots) == size else np.asarray(slots)
    present = np.zeros(size, bool)
    present[at] = True
    for key, values in infos.items():
        if key == "parts":
            arrays[key] = {name: _column(at, numbers, size, _NUMBER) for name, numbers in values.items()}
            arrays[key] |= {f"_{name}": present.copy() for name in values}
        else:
            arrays[key] = _column(at, values, size, _INTEGER if key in _INTEGERS else _OBJECT)
        arrays[f"_{key}"] = present.copy()
    return arrays


def _column(at: NDArray[np.int64] | slice, values: Sequence[Any], size: int, kind: "np.dtype[Any]") -> NDArray[Any]:
    """Return an array of `size` values, with these ones at the slots `at`. It is made by `fromiter`, because an
    assignment would unpack tuples of messages."""
    column = np.fromiter(values, kind, len(values))
    if len(column) == size:
        return column
    whole = np.empty(size, kind) if kind is _OBJECT else np.zeros(size, kind)
    whole[at] = column
    return whole
