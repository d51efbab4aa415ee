"""The hermes call format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call.

Written by Qwen2.5, Qwen3, Hermes and many fine-tunes.
"""

import re
from collections.abc import Iterable

from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import BLANKS, THINK, Turn, before_calls, behind_fault, read_turn, skip_blank
from palaestra.formats.stray import told
from palaestra.formats.values import as_call, decode, dump

EXAMPLE = '<tool_call>{"name": "tool", "arguments": {"argument": "value"}}</tool_call>'

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARKERS = re.compile(rf"<tool_call>{BLANKS}|</tool_call>|{THINK}")
_END = re.compile(rf"{BLANKS}</tool_call>")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    parsed = read_turn(text, EXAMPLE, _MARKERS, _read)
    return parsed if parsed.calls else told(parsed, text, EXAMPLE, tools)


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
        turn.fault(reason, end)
        return behind_fault(text, begin, _MARKERS, _CLOSE)
    closed = _END.match(text, end)
    if closed is not None:
        turn.add(as_call(value, lenient), begin)
        return closed.end()
    end = skip_blank(text, end)
    if end == len(text):  # A generation stopped by the closing tag, or cut right behind the JSON: nothing is missing.
        turn.add(as_call(value, True), begin)
        return end
    turn.unexpected(f"{_CLOSE} after the JSON", end)
    return behind_fault(text, end, _MARKERS, _CLOSE)
