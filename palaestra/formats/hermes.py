"""The hermes call format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call.

Written by Qwen2.5, Qwen3, Hermes and many fine-tunes.
"""

import re

from palaestra.formats.dialect import Dialect
from palaestra.formats.scanning import BLANKS, THINK, TurnScan, skip_blank
from palaestra.formats.values import as_call, decode, dump

EXAMPLE = '<tool_call>{"name": "tool", "arguments": {"argument": "value"}}</tool_call>'

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, begin = turn.text, marker.end()
    value, end, reason, lenient = decode(text, begin)
    if reason:
        return turn.skip(reason, end, _CLOSE, begin)
    if text.startswith(_CLOSE, end) or text.startswith(_CLOSE, end := skip_blank(text, end)):
        turn.add(as_call(value, lenient), begin)
        return end + len(_CLOSE)
    if end == len(text):  # A generation stopped by the closing tag, or cut right behind the JSON: nothing is missing.
        turn.add(as_call(value, True), begin)
        return end
    return turn.skip(turn.instead(f"{_CLOSE} after the JSON", end), end, _CLOSE)


_DIALECT = Dialect(
    EXAMPLE,
    re.compile(rf"<tool_call>{BLANKS}|</tool_call>|{THINK}"),
    _read,
    lambda call: _OPEN + dump({"name": call.name, "arguments": call.arguments}) + _CLOSE,
    _OPEN,
    _CLOSE,
)
parse, render = _DIALECT.parse, _DIALECT.render
