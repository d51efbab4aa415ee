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

from palaestra.errors import UsageError
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import NAME, THINK, Turn, before_calls, behind_fault, plain_name, read_turn, skip_blank
from palaestra.formats.stray import told
from palaestra.formats.values import Typing, bare

EXAMPLE = "<tool_call>tool<arg_key>argument</arg_key><arg_value>value</arg_value></tool_call>"

_OPEN, _CLOSE, _END_VALUE = "<tool_call>", "</tool_call>", "</arg_value>"
_MARKERS = re.compile(rf"</?tool_call>|{THINK}")
_TOOL = re.compile(rf"\s*+({NAME})\s*+")
_KEY = re.compile(rf"<arg_key>\s*+({NAME})\s*+</arg_key>\s*+<arg_value>")
_VALUE_ENDS = re.compile(r"</arg_value>(?=[ \t\r\n]*+(?:<arg_key>|</tool_call>|\Z))")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    parsed = read_turn(text, EXAMPLE, _MARKERS, lambda turn, marker: _read(turn, marker, tools))
    return told(parsed, text, EXAMPLE, tools)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Write calls as the chat template does; a UsageError for a value that its own closing tag would cut."""
    return before_calls(content, "\n".join(_written(call) for call in calls))


def _written(call: ParsedCall) -> str:
    lines = [_OPEN + plain_name(call.name, "glm")]
    for key, value in call.arguments.items():
        text = bare(value)
        ends = _VALUE_ENDS.search(text + _END_VALUE)
        if ends is None or ends.start() != len(text):
            raise UsageError(f"argument {key!r} contains {_END_VALUE}, which the glm format cannot write; use hermes")
        lines += [f"<arg_key>{plain_name(key, 'glm')}</arg_key>", f"<arg_value>{text}{_END_VALUE}"]
    return "\n".join([*lines, _CLOSE])


def _read(turn: Turn, marker: "re.Match[str]", tools: Schemas) -> int:
    text, begin = turn.text, marker.start()
    if marker[0] == _CLOSE:
        turn.fault(f"{_CLOSE} without {_OPEN} before it", begin)
        return marker.end()
    tool = _TOOL.match(text, marker.end())
    if tool is None:
        turn.unexpected(f"the tool's name after {_OPEN}", marker.end())
        return behind_fault(text, marker.end(), _MARKERS, _CLOSE)
    typing = Typing(tools, tool[1])
    arguments: dict[str, Any] = {}
    position, wanted = tool.end(), f"<arg_key> or {_CLOSE}"
    while key := _KEY.match(text, position):
        ends = _VALUE_ENDS.search(text, key.end())
        if ends is None:
            wanted = f"{_END_VALUE} after the value of {key[1]}"
            break
        arguments[key[1]] = typing.read(key[1], text[key.end() : ends.start()])
        position = skip_blank(text, ends.end())
    if text.startswith(_CLOSE, position):
        turn.add(ParsedCall(tool[1], arguments), begin)
        return position + len(_CLOSE)
    turn.unexpected(wanted, position)
    return behind_fault(text, position, _MARKERS, _CLOSE)
