"""How demonstrators of web environments play: a plan that yields calls, played from the start on the replies so far.

Left out: the plans (`web_nav`, `web_shop`).
"""

import re
from collections.abc import Generator, Mapping, Sequence

from palaestra.episode import Message
from palaestra.formats import ParsedCall, hermes

Calls = tuple[str, Mapping[str, object]]
"""A tool's name, and its arguments."""
Walk = Generator[Calls, str, str]
"""Yields a call, is sent its reply, returns the answer; a ValueError where a page is not what it should be."""


def asked(messages: Sequence[Message]) -> str:
    """The question."""
    return str(next(message["content"] for message in messages if message["role"] == "user"))


def next_turn(walk: Walk, messages: Sequence[Message], mark: str = "") -> str | None:
    """The turn that comes after these messages; None where the plan does not know on."""
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
    """The number of an element of a page, from the page's text."""
    found = re.search(rf"\[(\d+):{kind} {re.escape(name)}(?=\]| =| \()", page)
    if found is None:
        raise ValueError(f"there is no {kind} {name!r} in {page[:100]!r}")
    return int(found[1])


def follow(label: str) -> Generator[Calls, str, str]:
    """Look for a link on the page and click on it; the page that comes."""
    line = yield "find", {"text": label}
    return (yield "click", {"number": number_of(line, "link", label)})
