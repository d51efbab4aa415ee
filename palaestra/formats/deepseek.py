"""The deepseek call format: a name and JSON between special tokens, in two forms.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, then {...} in a json fence, then <｜tool▁call▁end｜>

The first is written by V3.1, the second by V3 and R1. Both are read, with or without the outer pair; the first is
rendered. Left out: the DSML tags of V3.2 and later.
"""

import re
from collections.abc import Iterable

from palaestra.formats.dialect import Dialect, before_calls
from palaestra.formats.parsed import ParsedCall
from palaestra.formats.scanning import NAME, THINK, TurnScan, plain_name, skip_blank
from palaestra.formats.values import decode, dump, with_arguments

EXAMPLE = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool<｜tool▁sep｜>"
    '{"argument": "value"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)

_ALL, _OPEN, _SEPARATOR = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CLOSE, _ALL_DONE, _FENCE = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```"
_MARKERS = re.compile(rf"<｜tool▁calls?▁(?:begin|end)｜>|<｜end▁of▁sentence｜>|{THINK}")
_HEAD = re.compile(rf"\s*+({NAME})\s*+{_SEPARATOR}\s*+(?:({NAME})\s*+(?=[`{{]))?(?:{_FENCE}(?:json)?\s*+)?")


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Return calls in the form of V3.1."""
    written = "".join(map(_written, calls))
    return before_calls(content, written and _ALL + written + _ALL_DONE, between="")


def _written(call: ParsedCall) -> str:
    return _OPEN + plain_name(call.name, "deepseek") + _SEPARATOR + dump(call.arguments) + _CLOSE


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, position = turn.text, marker.end()
    if marker[0] != _OPEN:
        return position
    head = _HEAD.match(text, position)
    if head is None:
        return turn.skip(turn.instead(f"the tool's name and {_SEPARATOR}", position), position, _CLOSE)
    value, end, reason, lenient = decode(text, head.end())
    if reason:
        return turn.skip(reason, end, _CLOSE, position)
    end = skip_blank(text, end)
    if text.startswith(_FENCE, end):
        end = skip_blank(text, end + len(_FENCE))
    closed = text.startswith(_CLOSE, end)
    if not closed and end < len(text):
        return turn.skip(turn.instead(f"{_CLOSE} after the JSON", end), end, _CLOSE)
    turn.add(with_arguments(head[2] or head[1], value, lenient or not closed), position)
    return end + len(_CLOSE) * closed


parse = Dialect(EXAMPLE, _MARKERS, _read, _written, _OPEN, _CLOSE).parse
