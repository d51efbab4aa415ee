"""What a person or Gymnasium sees of an episode: observations, infos and their arrays, a printed transcript.

Left out: chat templates. Only `agents.chat` turns messages into what a model reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Message

_INTEGERS = ("turn", "task")


def joined(messages: Iterable[Message]) -> str:
    """The text of messages, as an observation."""
    return "\n".join([str(message.get("content") or "") for message in messages])


def fresh(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Copies, so that who keeps an info cannot change the record."""
    return tuple([message.copy() for message in messages])


def transcript(messages: Sequence[Message]) -> str:
    """Messages with their roles, one after another, with nothing in them that a terminal would obey."""
    return "\n".join(f"{_label(message)}: {visible(str(message.get('content') or ''))}" for message in messages)


def visible(text: str) -> str:
    """Control characters spelled out: a model's text must not move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(letter if letter in "\n\t" or letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _label(message: Message) -> str:
    name = message.get("name")
    return f"{message['role']} ({visible(str(name))})" if name else str(message["role"])


def stack(slots: Sequence[int], infos: Mapping[str, Sequence[Any]], size: int) -> dict[str, Any]:
    """Infos of some slots, key by key, as one array a key with a mask `_key` of these slots.

    The reward parts become a dict of such arrays. Types do not depend on who reports first.
    """
    found: dict[str, Any] = {}
    said = np.zeros(size, bool)
    said[slots] = True
    for key, values in infos.items() if slots else ():
        if key == "parts":
            parts = {name: [one[name] for one in values] for name in values[0]}
            found[key] = {name: _column(slots, numbers, np.zeros(size)) for name, numbers in parts.items()}
            found[key] |= {f"_{name}": said.copy() for name in parts}
        else:
            empty = np.zeros(size, np.int64) if key in _INTEGERS else np.empty(size, dtype=object)
            found[key] = _column(slots, values, empty)
        found[f"_{key}"] = said.copy()
    return found


def _column(slots: Sequence[int], values: Sequence[Any], empty: NDArray[Any]) -> NDArray[Any]:
    """An array with these values in it; `fromiter`, since assignment would take a tuple of messages apart."""
    empty[slots] = np.fromiter(values, empty.dtype, len(values))
    return empty
