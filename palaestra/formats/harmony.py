"""The harmony call format: messages on channels. A message that is addressed to a tool is a call.

    <|channel|>analysis<|message|>thinking<|end|><|start|>assistant
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

Written by gpt-oss. A turn begins after `<|start|>assistant`. The recipient may come before or after the channel. Text
on `analysis` is thinking. If there is text on `final`, it is the whole content. The built-in `python` tool takes bare
code. Left out: the argument forms of the other built-in tools.
"""

import re
from collections.abc import Iterable

from palaestra.formats.dialect import Dialect, before_calls
from palaestra.formats.parsed import ParsedCall
from palaestra.formats.scanning import NAME, THINK, TurnScan, plain_name, skip_blank, strip_thinking
from palaestra.formats.values import decode, dump, with_arguments

EXAMPLE = '<|channel|>commentary to=functions.tool <|constrain|>json<|message|>{"argument": "value"}<|call|>'

MAX_HEADER_PART = 200
"""Maximum characters between two special tokens of a header."""

_NEXT, _MESSAGE = "<|start|>assistant", "<|message|>"
_RECIPIENT = re.compile(rf"to=({NAME})")
_CHANNEL = re.compile(r"<\|channel\|>\s*+([a-z]*)")
_PART = rf"[^<]{{0,{MAX_HEADER_PART}}}+"
_HEADER = re.compile(rf"(?:<\|start\|>)?{_PART}(?:<\|(?:channel|constrain)\|>{_PART}){{0,3}}<\|message\|>")
_MARKERS = re.compile(
    rf"<\|(?:start|channel|message|end|call|return)\|>|\A\s*+(?:assistant\s*+)?to={NAME}(?=\s*+<\||\Z)|{THINK}"
)
_ENDS = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|(?:start|channel)\|>)|\Z")
_NO_HEADERS = ("<|end|>", "<|call|>", "<|return|>")


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Return the content and the calls as messages on `commentary`; content without calls is a message on `final`."""
    written = [_written(call) for call in calls]
    if content:
        channel = "commentary" if written else "final"
        content = f"<|channel|>{channel}{_MESSAGE}{content}<|end|>"
    return before_calls(content, _NEXT.join(written), between=_NEXT)


def _written(call: ParsedCall) -> str:
    name = plain_name(call.name, "harmony")
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json{_MESSAGE}{dump(call.arguments)}<|call|>"


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, begin = turn.text, marker.start()
    if marker[0] in _NO_HEADERS:
        return marker.end()
    header = _HEADER.match(text, begin)
    if header is None:
        following = _MARKERS.search(text, marker.end())
        end = following.start() if following else len(text)
        if _RECIPIENT.search(text, begin, end):
            turn.fault(f"the header has no {_MESSAGE}", begin)
        return end
    recipient = _RECIPIENT.search(header[0])
    if recipient:
        return _call(turn, recipient[1], header.end())
    end, behind = _end(text, header.end())
    channel = _CHANNEL.search(header[0])
    if channel is None or channel[1] != "analysis":
        aloud = strip_thinking(text[header.end() : end]).content
        (turn.final if channel and channel[1] == "final" else turn.content).append(aloud)
    return behind


def _call(turn: TurnScan, recipient: str, position: int) -> int:
    """Read the body of a message to a tool."""
    text = turn.text
    begin = skip_blank(text, position)
    value, end, reason, lenient = decode(text, begin)
    closes, behind = _end(text, position if reason else end)
    if reason and recipient == "python" and begin < len(text):
        turn.add(ParsedCall(recipient, {"code": text[position:closes]}), position)
    elif begin == closes < behind:  # An empty body that is closed: no arguments. Without its end it may have been cut.
        turn.add(with_arguments(recipient.removeprefix("functions."), None), begin)
    elif reason:
        turn.fault(reason, end)
    elif skip_blank(text, end) != closes:
        end = skip_blank(text, end)
        turn.fault(turn.instead("<|call|> after the JSON", end), end)
    else:  # The end of the turn is exact: <|call|> stops the generation and is often stripped.
        unclosed = closes == behind < len(text)
        turn.add(with_arguments(recipient.removeprefix("functions."), value, lenient or unclosed), begin)
    return behind


def _end(text: str, position: int) -> tuple[int, int]:
    """Return the index where a message ends, and the index after its closing token."""
    return next(_ENDS.finditer(text, position)).span()


parse = Dialect(EXAMPLE, _MARKERS, _read, _written).parse
