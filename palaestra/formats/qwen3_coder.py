"""The qwen3_coder call format: tags around bare text, typed by the tool's schema.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

Written by Qwen3-Coder, Qwen3.5 and Nemotron 3. The dialect has no escapes: a value ends at the first `</parameter>`
that another parameter, the end of the call or the end of the turn follows. Three deviations are read and marked as
lenient: a missing `<tool_call>`, which these models often leave out, a missing last `</tool_call>`, and several
functions in one `<tool_call>`. Left out: guessing where an unclosed value ends.
"""

import re

from palaestra.formats.dialect import Dialect
from palaestra.formats.parsed import ParsedCall
from palaestra.formats.scanning import NAME, THINK, TurnScan, plain_name, skip_blank
from palaestra.formats.values import BareText, Typing

EXAMPLE = "<tool_call><function=tool><parameter=argument>value</parameter></function></tool_call>"

_OPEN, _CLOSE, _END = "<tool_call>", "</tool_call>", "</function>"
_FUNCTION_OPEN = "<function="
_FUNCTION = re.compile(rf"{_FUNCTION_OPEN}({NAME})>")
_VALUES = BareText(
    "qwen3_coder",
    head="<parameter={}>\n",
    key=rf"<parameter=({NAME})>\n?",
    opener="<parameter=",
    closer="</parameter>",
    ends="<parameter=|</function>|</tool_call>",
    tail="\n",
)


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, begin = turn.text, marker.start()
    wrapped = marker[0] == _OPEN
    position = skip_blank(text, marker.end()) if wrapped else begin
    function = _FUNCTION.match(text, position)
    if function is None:
        begin = position + len(_FUNCTION_OPEN) * text.startswith(_FUNCTION_OPEN, position)
        return turn.skip(turn.instead("<function=NAME>", position), position, _CLOSE, begin)
    typing = Typing(turn.tools, function[1])
    arguments, position, endless = _VALUES.arguments(text, skip_blank(text, function.end()), typing)
    if endless or not text.startswith(_END, position):
        expected = f"{_VALUES.closer} after <parameter={endless}>" if endless else f"a <parameter=...> or {_END}"
        return turn.skip(turn.instead(expected, position), position, _CLOSE)
    position = skip_blank(text, position + len(_END))
    closed = text.startswith(_CLOSE, position)
    if wrapped and not closed and position < len(text) and not text.startswith(_FUNCTION_OPEN, position):
        return turn.skip(turn.instead(f"{_CLOSE} after {_END}", position), position, _CLOSE)
    turn.add(ParsedCall(function[1], arguments, not (wrapped and closed)), begin)
    return position + len(_CLOSE) * closed


def _written(call: ParsedCall) -> str:
    pairs = [_VALUES.written(key, value) for key, value in call.arguments.items()]
    return "\n".join([f"{_OPEN}\n<function={plain_name(call.name, 'qwen3_coder')}>", *pairs, _END, _CLOSE])


_MARKERS = re.compile(rf"</?tool_call>|{_FUNCTION_OPEN}|{THINK}")
_DIALECT = Dialect(EXAMPLE, _MARKERS, _read, _written, _OPEN, _CLOSE)
parse, render = _DIALECT.parse, _DIALECT.render
