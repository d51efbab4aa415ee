"""The hermes call format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call.

Written by Qwen2.5, Qwen3, Hermes and many fine-tunes.
"""

import re
from collections.abc import Iterable

from palaestra.formats import stray
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import BLANKS, THINK, Turn, before_calls, read_turn, skip_blank
from palaestra.formats.values import as_call, decode, dump

EXAMPLE = '<tool_call>{"name": "tool", "arguments": {"argument": "value"}}</tool_call>'

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARKERS = re.compile(rf"<tool_call>{BLANKS}|</tool_call>|{THINK}")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    parsed = read_turn(text, EXAMPLE, _MARKERS, _read) if "<" in text else Parsed(text.strip())  # Answers are frequent.
    return parsed if parsed.calls else stray.check(parsed, text, EXAMPLE, tools)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Write calls as an agent would."""
    blocks = [_OPEN + dump({"name": call.name, "arguments": call.arguments}) + _CLOSE for call in calls]
    return before_calls(content, "\n".join(blocks))


def _read(turn: Turn, marker: "re.Match[str]") -> int:
    text, begin = turn.text, marker.end()
    if marker[0] == _CLOSE:
        turn.fault(f"{_CLOSE} without {_OPEN} before it", marker.start())
        return begin
    value, end, reason, lenient = decode(text, begin)
    if reason:
        return turn.skip(reason, end, _MARKERS, _CLOSE, begin)
    if text.startswith(_CLOSE, end) or text.startswith(_CLOSE, end := skip_blank(text, end)):
        turn.add(as_call(value, lenient), begin)
        return end + len(_CLOSE)
    if end == len(text):  # A generation stopped by the closing tag, or cut right behind the JSON: nothing is missing.
        turn.add(as_call(value, True), begin)
        return end
    return turn.skip(turn.instead(f"{_CLOSE} after the JSON", end), end, _MARKERS, _CLOSE)
