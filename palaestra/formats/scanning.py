"""One forward walk over a turn: what is thought, what is said, and where each call begins.

`walk` knows thinking, the cap on calls and what counts as said; a format hands it a pattern of its markers and a reader
that takes over at each of them. Every position only moves forward and every look ahead is bounded or made
at most `MAX_CALLS` times, so the time is linear whatever the agent wrote. Left out: values (`values`).
"""

import re
from collections.abc import Callable

from palaestra.errors import UsageError
from palaestra.formats.parsed import Fault, Parsed, ParsedCall, Schemas

MAX_CALLS = 64
"""Calls read in one turn. A degenerate sample repeats an opening tag thousands of times; the cap also keeps the time
linear, since one unclosed string can make a decoder look at the rest of the turn."""
TOO_MANY = f"more than {MAX_CALLS} calls in one turn; the rest was not read"
MAX_NAME = 128
"""Characters in the name of a tool or argument, where it is not a JSON string."""
MAX_QUOTED = 20
"""Characters of the turn that a fault quotes."""

BLANKS = r"[ \t\r\n]*+"
"""Blanks between the parts of a call, if any."""
THINK = "</?think>"
"""For the markers of every format: thinking is recognized only where the pattern finds it."""
NAME = rf"[^\s<>{{}}\[\]`|｜]{{1,{MAX_NAME}}}"
"""The name of a tool or argument in a dialect that does not quote it."""

_NAME = re.compile(NAME)
_THINKING = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_UNTHINKING = frozenset(_THINKING.values())
_THINK = re.compile(THINK)
_BLANK = " \t\r\n"
_BLANKS = re.compile(BLANKS)


class Turn:
    """What has been read of a turn so far. Readers add to it."""

    __slots__ = ("calls", "content", "end", "example", "final", "markers", "text", "tools")

    def __init__(self, text: str, example: str, markers: "re.Pattern[str]" = _THINK, tools: Schemas = ()) -> None:
        self.text, self.example, self.markers, self.tools = text, example, markers, tools
        self.content: list[str] = []
        self.final: list[str] = []
        """Where there is any, it is all that the turn says."""
        self.calls: list[ParsedCall | Fault] = []
        self.end = -1
        """Behind the last call or fault; -1 before there was one."""

    def add(self, call: ParsedCall | str, position: int) -> None:
        """Record a call, or the reason why it is none."""
        if isinstance(call, str):
            self.fault(call, position)
        else:
            self.calls.append(call)

    def add_all(self, found: "list[ParsedCall | str]", position: int) -> None:
        """Record what a list of calls holds, as far as there is room."""
        room = MAX_CALLS - len(self.calls)
        for call in found[:room]:
            self.add(call, position)
        if len(found) > room:
            self.fault(TOO_MANY, position)

    def fault(self, reason: str, position: int) -> None:
        """Record what is wrong, where, and how it is written rightly."""
        said = f"malformed call at character {position}: {reason}. Write it like {self.example}"
        self.calls.append(Fault(said, position))

    def instead(self, wanted: str, position: int) -> str:
        """The reason of a fault where something else stands than `wanted`."""
        found = repr(self.text[position : position + MAX_QUOTED]) if position < len(self.text) else "the end"
        return f"expected {wanted}, found {found}"

    def skip(self, reason: str, position: int, closer: str = "", begin: int = -1) -> int:
        """Record a fault, and give back where reading goes on: behind the closing tag of the faulty block that begins
        there (or at `begin`), or at the next marker if it has none.

        Thinking in between is passed over; a `</think>` that nothing opened is not: the block may have been a thought.
        """
        self.fault(reason, position)
        position = position if begin < 0 else begin
        unclosed = False
        while marker := self.markers.search(self.text, position):
            if marker[0] not in _THINKING:
                return marker.end() if marker[0] == closer else marker.start()
            end = -1 if unclosed else self.text.find(_THINKING[marker[0]], marker.end())
            unclosed = end < 0
            position = marker.end() if unclosed else end + len(_THINKING[marker[0]])
        return len(self.text)


Reader = Callable[[Turn, "re.Match[str]"], int]
"""Reads on from a marker, adds to the turn, and returns where the walk goes on: at the marker's end or behind it."""


def walk(turn: Turn, read: Reader) -> Parsed:
    """Read a turn to its end. Its `markers` find what `read` takes over at, and the thinking tags (`THINK`)."""
    text, markers, content, calls = turn.text, turn.markers, turn.content, turn.calls
    marker = markers.search(text)
    thought, position = False, 0
    while marker is not None:
        content.append(text[position : marker.start()])
        found = marker[0]
        if closer := _THINKING.get(found):
            thought = True
            end = text.find(closer, marker.end())
            if end < 0:  # Thinking that never ended: nothing after it was said aloud.
                break
            position = end + len(closer)
        elif found in _UNTHINKING:
            if not thought:  # Some chat templates write the opening tag themselves, so the turn began as thinking.
                content.clear()
                calls.clear()
            thought = True
            position = marker.end()
        elif len(calls) < MAX_CALLS:
            before = len(calls)
            position = read(turn, marker)
            turn.end = position if len(calls) > before else turn.end
        else:
            del calls[MAX_CALLS:]
            turn.fault(TOO_MANY, marker.start())
            break
        marker = markers.search(text, position) if position < len(text) else None
    else:
        content.append(text[position:])
    return Parsed("".join(turn.final or content).strip(), tuple(calls))


def said(text: str) -> Parsed:
    """A turn that no format needs to look at: its text without thinking."""
    return walk(Turn(text, ""), lambda turn, marker: marker.end())


def first_said(text: str, markers: "re.Pattern[str]") -> list["re.Match[str]"]:
    """The first marker outside thinking; and where a `</think>` that nothing opened follows, the first behind that as
    well: the tag may have ended thinking, or may stand inside a call."""
    found: list[re.Match[str]] = []

    def read(turn: Turn, marker: "re.Match[str]") -> int:
        if not turn.calls:  # None yet, or forgotten behind a `</think>`.
            turn.fault("", 0)
            found.append(marker)
        return max(marker.end(), marker.start() + 1)

    walk(Turn(text, "", markers), read)
    return found


def skip_blank(text: str, position: int) -> int:
    """Behind the blanks at `position`."""
    if position >= len(text) or text[position] not in _BLANK:
        return position
    blanks = _BLANKS.match(text, position)
    return blanks.end() if blanks else position


def plain_name(name: str, dialect: str) -> str:
    """The name, if a dialect that does not quote names can carry it."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name[:MAX_QUOTED]!r} cannot be written in the {dialect} format; "
            f"expected a name of 1 to {MAX_NAME} characters without blanks and brackets"
        )
    return name
