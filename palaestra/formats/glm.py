"""The glm call format: a name, then pairs of key and value as bare text, typed by the tool's schema.

    <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

Written by GLM-4.5 and later; from 4.7 on without the line breaks, and both are read. The dialect has no escapes: a
value ends at the first `</arg_value>` that another key, the end of the call or the end of the turn follows. Left out:
calls without their `</tool_call>`, since nothing shows that they were complete.
"""

import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats import stray
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import NAME, THINK, Turn, before_calls, plain_name, read_turn, skip_blank
from palaestra.formats.values import BareText, Typing

EXAMPLE = "<tool_call>tool<arg_key>argument</arg_key><arg_value>value</arg_value></tool_call>"

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARKERS = re.compile(rf"</?tool_call>|{THINK}")
_TOOL = re.compile(rf"\s*+({NAME})\s*+")
_KEY = re.compile(rf"<arg_key>\s*+({NAME})\s*+</arg_key>\s*+<arg_value>")
_VALUE = BareText("glm", "<arg_value>", "</arg_value>", "<arg_key>|</tool_call>")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    parsed = read_turn(text, EXAMPLE, _MARKERS, lambda turn, marker: _read(turn, marker, tools))
    return stray.check(parsed, text, EXAMPLE, tools)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Write calls as the chat template does; a UsageError for a value that its own closing tag would cut."""
    return before_calls(content, "\n".join(_written(call) for call in calls))


def _written(call: ParsedCall) -> str:
    lines = [_OPEN + plain_name(call.name, "glm")]
    for key, value in call.arguments.items():
        lines += [f"<arg_key>{plain_name(key, 'glm')}</arg_key>", f"<arg_value>{_VALUE.written(key, value)}"]
    return "\n".join([*lines, _CLOSE])


def _read(turn: Turn, marker: "re.Match[str]", tools: Schemas) -> int:
    text, begin = turn.text, marker.start()
    if marker[0] == _CLOSE:
        turn.fault(f"{_CLOSE} without {_OPEN} before it", begin)
        return marker.end()
    tool = _TOOL.match(text, marker.end())
    if tool is None:
        reason = turn.instead(f"the tool's name after {_OPEN}", marker.end())
        return turn.skip(reason, marker.end(), _MARKERS, _CLOSE)
    typing = Typing(tools, tool[1])
    arguments: dict[str, Any] = {}
    position, wanted = tool.end(), f"<arg_key> or {_CLOSE}"
    while key := _KEY.match(text, position):
        value = _VALUE.read(text, key.end())
        if value is None:
            position, wanted = key.end(), f"{_VALUE.closer} after the value of {key[1]}"
            break
        arguments[key[1]] = typing.read(key[1], value[0])
        position = skip_blank(text, value[1])
    if text.startswith(_CLOSE, position):
        turn.add(ParsedCall(tool[1], arguments), begin)
        return position + len(_CLOSE)
    return turn.skip(turn.instead(wanted, position), position, _MARKERS, _CLOSE)
