"""Helpers for demonstrators of web environments: a plan yields calls, and is replayed on the replies so far.

Left out: the plans (`web_nav`, `web_shop`).
"""

import re
from collections.abc import Generator, Mapping, Sequence

from palaestra.episode import Message
from palaestra.formats import ParsedCall, hermes

Calls = tuple[str, Mapping[str, object]]
"""Name of a tool, and its arguments."""
Walk = Generator[Calls, str, str]
"""Generator that yields calls, receives replies and returns the answer. An unexpected page raises `ValueError`."""


def asked(messages: Sequence[Message]) -> str:
    """Return the question: the first message of the user."""
    return str(next(message["content"] for message in messages if message["role"] == "user"))


def next_turn(walk: Walk, messages: Sequence[Message], mark: str = "") -> str | None:
    """Return the turn that follows these messages; None if the plan fails on a page."""
    replies = [str(message["content"]) for message in messages if message["role"] == "tool"]
    try:
        name, arguments = next(walk)
        for reply in replies:
            name, arguments = walk.send(reply)
    except StopIteration as end:
        return f"{mark}{end.value}"
    except ValueError:
        return None
    return hermes.render([ParsedCall(name, dict(arguments))])


def number_of(page: str, kind: str, name: str) -> int:
    """Return the number of an element in the text of a page. Raise `ValueError` if it is not there."""
    match = re.search(rf"\[(\d+):{kind} {re.escape(name)}(?=\]| =| \()", page)
    if match is None:
        raise ValueError(f"there is no {kind} {name!r} in {page[:100]!r}")
    return int(match[1])


def follow(label: str) -> Generator[Calls, str, str]:
    """Find a link on the page and click on it. Return the new page."""
    line = yield "find", {"text": label}
    return (yield "click", {"number": number_of(line, "link", label)})
