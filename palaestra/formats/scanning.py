"""One forward walk over a turn, which separates thinking, content and the beginnings of calls.

`walk` handles thinking, the limit of calls and the content. A format passes a pattern of its markers, and a reader that
is called at each marker. The position only moves forward, and each look ahead is bounded or done at most `MAX_CALLS`
times, so the time is linear for any text of an agent. Left out: values (`values`).
"""

import re
from collections.abc import Callable

from palaestra.errors import UsageError
from palaestra.formats.parsed import CallParseError, Parsed, ParsedCall, Schemas

MAX_CALLS = 64
"""Maximum calls read in one turn. A degenerate sample repeats an opening tag thousands of times; the cap also keeps
the time linear, since one unclosed string can make a decoder look at the rest of the turn."""
TOO_MANY = f"more than {MAX_CALLS} calls in one turn; the rest was not read"
MAX_NAME = 128
"""Maximum characters in the name of a tool or argument that is not a JSON string."""
MAX_QUOTED = 20
"""Maximum characters of the turn that a fault quotes."""

BLANKS = r"[ \t\r\n]*+"
"""Pattern of optional blanks between the parts of a call."""
THINK = "</?think>"
"""Part of every format's markers: thinking is recognized only where the pattern finds it."""
NAME = rf"[^\s<>{{}}\[\]`|｜]{{1,{MAX_NAME}}}"
"""Pattern of a tool's or argument's name in a dialect that does not quote it."""

_NAME = re.compile(NAME)
_THINKING = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_UNTHINKING = frozenset(_THINKING.values())
_THINK = re.compile(THINK)
_BLANK = " \t\r\n"
_BLANKS = re.compile(BLANKS)


class TurnScan:
    """State of reading a turn. Readers add calls, faults and content to it."""

    __slots__ = ("calls", "content", "end", "example", "final", "markers", "text", "tools")

    def __init__(self, text: str, example: str, markers: "re.Pattern[str]" = _THINK, tools: Schemas = ()) -> None:
        self.text, self.example, self.markers, self.tools = text, example, markers, tools
        self.content: list[str] = []
        self.final: list[str] = []
        """Texts of a final channel; if there are any, they are the whole content."""
        self.calls: list[ParsedCall | CallParseError] = []
        self.end = -1
        """Index after the last call or fault; -1 before the first."""

    def add(self, call: ParsedCall | str, position: int) -> None:
        """Record a call. A text is the reason why there is no call: record it as a fault."""
        if isinstance(call, str):
            self.fault(call, position)
        else:
            self.calls.append(call)

    def add_all(self, items: "list[ParsedCall | str]", position: int) -> None:
        """Record the calls and faults of a list, up to the limit of calls."""
        room = MAX_CALLS - len(self.calls)
        for call in items[:room]:
            self.add(call, position)
        if len(items) > room:
            self.fault(TOO_MANY, position)

    def fault(self, reason: str, position: int) -> None:
        """Record a fault: its reason, its position and the right form."""
        message = f"malformed call at character {position}: {reason}. Write it like {self.example}"
        self.calls.append(CallParseError(message, position))

    def instead(self, expected: str, position: int) -> str:
        """Return the reason of a fault at a position where `expected` is missing."""
        actual = repr(self.text[position : position + MAX_QUOTED]) if position < len(self.text) else "the end"
        return f"expected {expected}, found {actual}"

    def skip(self, reason: str, position: int, closer: str = "", begin: int = -1) -> int:
        """Record a fault at `position`. Return the index where reading continues: after the next marker if it is
        `closer`, the closing tag of the faulty block, otherwise at the next marker. The search for the marker starts at
        `begin`, or at `position` if `begin` is negative.

        Thinking in between is skipped. A `</think>` without an opening tag is not: the block may have been a thought.
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


MarkReader = Callable[[TurnScan, "re.Match[str]"], int]
"""Function that reads from a marker, adds to the turn, and returns where to continue: at its end or later."""


def walk(turn: TurnScan, read: MarkReader) -> Parsed:
    """Read a turn to its end. `read` is called at its `markers`, which also find the thinking tags (`THINK`)."""
    text, markers, content, calls = turn.text, turn.markers, turn.content, turn.calls
    marker = markers.search(text)
    thought, position = False, 0
    while marker is not None:
        content.append(text[position : marker.start()])
        mark = marker[0]
        if closer := _THINKING.get(mark):
            thought = True
            end = text.find(closer, marker.end())
            if end < 0:  # Thinking that never ended: nothing after it is content.
                break
            position = end + len(closer)
        elif mark in _UNTHINKING:
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


def strip_thinking(text: str) -> Parsed:
    """Return a turn parsed without any format: its text without thinking."""
    return walk(TurnScan(text, ""), lambda turn, marker: marker.end())


def first_marks(text: str, markers: "re.Pattern[str]") -> list["re.Match[str]"]:
    """Return the first marker outside thinking. If a `</think>` without an opening tag follows it, also return the
    first marker after that tag: the tag may have ended thinking, or may be part of a call."""
    matches: list[re.Match[str]] = []

    def read(turn: TurnScan, marker: "re.Match[str]") -> int:
        if not turn.calls:  # None yet, or forgotten behind a `</think>`.
            turn.fault("", 0)
            matches.append(marker)
        return max(marker.end(), marker.start() + 1)

    walk(TurnScan(text, "", markers), read)
    return matches


def skip_blank(text: str, position: int) -> int:
    """Return the index after the blanks at `position`."""
    if position >= len(text) or text[position] not in _BLANK:
        return position
    blanks = _BLANKS.match(text, position)
    return blanks.end() if blanks else position


def plain_name(name: str, dialect: str) -> str:
    """Return the name. Raise a UsageError if a dialect that does not quote names cannot write it."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name[:MAX_QUOTED]!r} cannot be written in the {dialect} format; "
            f"expected a name of 1 to {MAX_NAME} characters without blanks and brackets"
        )
    return name
