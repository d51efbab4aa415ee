"""The mistral call format: `[TOOL_CALLS]name[ARGS]{...}` once per call, or `[TOOL_CALLS] [{...}, {...}]` for all.

The first is written by models with a tokenizer from version 11 on (Devstral, Ministral 3, Magistral), the second by
those before. Both are read, `[ARGS]` may be missing, and `[CALL_ID]` is ignored; the first is written. `[THINK]` begins
thinking. Left out: calls in a list of the second form that is not closed, since nothing shows that it was complete.
"""

import re
from typing import Any

from palaestra.formats.dialect import Dialect
from palaestra.formats.scanning import NAME, THINK, TurnScan, plain_name, skip_blank
from palaestra.formats.values import as_call, decode, dump, with_arguments

EXAMPLE = '[TOOL_CALLS]tool[ARGS]{"argument": "value"}'

_OPEN, _ARGS = "[TOOL_CALLS]", "[ARGS]"
_HEAD = re.compile(rf"({NAME})\s*+(?:\[CALL_ID\]\s*+{NAME}\s*+)?(\[ARGS\])?\s*+")


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, begin = turn.text, skip_blank(turn.text, marker.end())
    if text[begin : begin + 1] in ("[", "{"):
        value, end, reason, lenient = decode(text, begin)
        if not reason:
            _add_list(turn, value, lenient, begin)
            return end
        return turn.skip(reason, end, begin=marker.end())
    head = _HEAD.match(text, begin)
    if head is None:
        return turn.skip(turn.instead(f"the tool's name after {_OPEN}", begin), begin, begin=marker.end())
    value, end, reason, lenient = decode(text, head.end())
    if reason:
        return turn.skip(reason, end, begin=marker.end())
    turn.add(with_arguments(head[1], value, lenient or head[2] is None), begin)
    return end


def _add_list(turn: TurnScan, value: Any, lenient: bool, position: int) -> None:
    """Add the calls of a list, which is the older form; a single object without a list is read too."""
    items = value if isinstance(value, list) else [value]
    if not items:
        turn.fault("the list of calls is empty", position)
    turn.add_all([as_call(item, lenient or items is not value) for item in items], position)


_DIALECT = Dialect(
    EXAMPLE,
    re.compile(rf"\[TOOL_CALLS\]|\[/?THINK\]|{THINK}"),
    _read,
    lambda call: _OPEN + plain_name(call.name, "mistral") + _ARGS + dump(call.arguments),
    between="",
)
parse, render = _DIALECT.parse, _DIALECT.render
