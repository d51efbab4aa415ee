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

from palaestra.formats.dialect import Dialect
from palaestra.formats.parsed import ParsedCall
from palaestra.formats.scanning import NAME, THINK, TurnScan, plain_name
from palaestra.formats.values import BareText, Typing

EXAMPLE = "<tool_call>tool<arg_key>argument</arg_key><arg_value>value</arg_value></tool_call>"

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TOOL = re.compile(rf"\s*+({NAME})\s*+")
_VALUES = BareText(
    "glm",
    head="<arg_key>{}</arg_key>\n<arg_value>",
    key=rf"<arg_key>\s*+({NAME})\s*+</arg_key>\s*+<arg_value>",
    opener="<arg_value>",
    closer="</arg_value>",
    ends="<arg_key>|</tool_call>",
)


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, begin = turn.text, marker.end()
    tool = _TOOL.match(text, begin)
    if tool is None:
        return turn.skip(turn.instead(f"the tool's name after {_OPEN}", begin), begin, _CLOSE)
    arguments, position, endless = _VALUES.arguments(text, tool.end(), Typing(turn.tools, tool[1]))
    if not endless and text.startswith(_CLOSE, position):
        turn.add(ParsedCall(tool[1], arguments), begin)
        return position + len(_CLOSE)
    expected = f"{_VALUES.closer} after the value of {endless}" if endless else f"<arg_key> or {_CLOSE}"
    return turn.skip(turn.instead(expected, position), position, _CLOSE)


def _written(call: ParsedCall) -> str:
    pairs = [_VALUES.written(key, value) for key, value in call.arguments.items()]
    return "\n".join([_OPEN + plain_name(call.name, "glm"), *pairs, _CLOSE])


_DIALECT = Dialect(EXAMPLE, re.compile(rf"</?tool_call>|{THINK}"), _read, _written, _OPEN, _CLOSE)
parse, render = _DIALECT.parse, _DIALECT.render
