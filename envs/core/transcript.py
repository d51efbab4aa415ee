"""What a person or Gymnasium sees of an episode: observations, infos and their arrays, a printed transcript.

Left out: chat templates. Only `agents.chat` turns messages into what a model reads.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Message

_INTEGERS = ("turn", "task")


def joined(messages: Iterable[Message]) -> str:
    """The text of messages, as an observation."""
    return "\n".join(str(message.get("content") or "") for message in messages)


def fresh(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Copies, so that who keeps an info cannot change the record."""
    return tuple(dict(message) for message in messages)


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


def stack(rows: Iterable[tuple[int, dict[str, Any]]], size: int) -> dict[str, Any]:
    """Infos of some slots as one array a key with a mask `_key`; types do not depend on who reports first."""
    found: dict[str, Any] = {}
    for slot, info in rows:
        for key, value in info.items():
            if key not in found:
                found[key] = {} if key == "parts" else np.zeros(size, np.int64) if key in _INTEGERS else _objects(size)
                found[f"_{key}"] = np.zeros(size, bool)
            found[f"_{key}"][slot] = True
            if key != "parts":
                found[key][slot] = value
                continue
            for name, number in value.items():
                found[key].setdefault(name, np.zeros(size))[slot] = number
                found[key].setdefault(f"_{name}", np.zeros(size, bool))[slot] = True
    return found


def _objects(size: int) -> NDArray[Any]:
    return np.full(size, None, dtype=object)
