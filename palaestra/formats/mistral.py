"""The mistral call format: `[TOOL_CALLS]name[ARGS]{...}` once per call, or `[TOOL_CALLS] [{...}, {...}]` for all.

The first is written by models with a tokenizer from version 11 on (Devstral, Ministral 3, Magistral), the second by
those before. Both are read, `[ARGS]` may be missing, and `[CALL_ID]` is passed over; the first is written. `[THINK]` is
thinking. Left out: calls in a version 3 list without its closing bracket, since nothing shows that it was complete.
"""

import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats import stray
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import NAME, THINK, Turn, before_calls, plain_name, read_turn, skip_blank
from palaestra.formats.values import as_call, decode, dump, with_arguments

EXAMPLE = '[TOOL_CALLS]tool[ARGS]{"argument": "value"}'

_OPEN, _ARGS = "[TOOL_CALLS]", "[ARGS]"
_MARKERS = re.compile(rf"\[TOOL_CALLS\]|\[/?THINK\]|{THINK}")
_HEAD = re.compile(rf"({NAME})\s*+(?:\[CALL_ID\]\s*+{NAME}\s*+)?(\[ARGS\])?\s*+")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    return stray.check(read_turn(text, EXAMPLE, _MARKERS, _read), text, EXAMPLE, tools)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Write calls in the newer form."""
    written = [_OPEN + plain_name(call.name, "mistral") + _ARGS + dump(call.arguments) for call in calls]
    return before_calls(content, "".join(written), between="")


def _read(turn: Turn, marker: "re.Match[str]") -> int:
    text, begin = turn.text, skip_blank(turn.text, marker.end())
    if text[begin : begin + 1] in ("[", "{"):
        value, end, reason, lenient = decode(text, begin)
        if not reason:
            _add_list(turn, value, lenient, begin)
            return end
        return turn.skip(reason, end, _MARKERS, begin=marker.end())
    head = _HEAD.match(text, begin)
    if head is None:
        return turn.skip(turn.instead(f"the tool's name after {_OPEN}", begin), begin, _MARKERS, begin=marker.end())
    value, end, reason, lenient = decode(text, head.end())
    if reason:
        return turn.skip(reason, end, _MARKERS, begin=marker.end())
    turn.add(with_arguments(head[1], value, lenient or head[2] is None), begin)
    return end


def _add_list(turn: Turn, value: Any, lenient: bool, position: int) -> None:
    """The calls of the older form; one object without its list counts as well."""
    found = value if isinstance(value, list) else [value]
    if not found:
        turn.fault("the list of calls is empty", position)
    turn.add_all([as_call(item, lenient or found is not value) for item in found], position)
