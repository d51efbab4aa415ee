"""The qwen3_coder call format: tags around bare text, typed by the tool's schema.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

Written by Qwen3-Coder, Qwen3.5 and Nemotron 3. The dialect has no escapes: a value ends at the first `</parameter>`
that another parameter, the end of the call or the end of the turn follows. Read leniently: a missing `<tool_call>`,
which these models often leave out, a missing last `</tool_call>`, and several functions in one `<tool_call>`. Left out:
guessing where an unclosed value ends.
"""

import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats import stray
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import NAME, THINK, Turn, before_calls, plain_name, read_turn, skip_blank
from palaestra.formats.values import BareText, Typing, bare

EXAMPLE = "<tool_call><function=tool><parameter=argument>value</parameter></function></tool_call>"

_OPEN, _CLOSE, _END = "<tool_call>", "</tool_call>", "</function>"
_FUNCTION_OPEN = "<function="
_MARKERS = re.compile(rf"</?tool_call>|{_FUNCTION_OPEN}|{THINK}")
_FUNCTION = re.compile(rf"{_FUNCTION_OPEN}({NAME})>")
_KEY = re.compile(rf"<parameter=({NAME})>\n?")
_VALUE = BareText("qwen3_coder", "<parameter=", "</parameter>", "<parameter=|</function>|</tool_call>")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    parsed = read_turn(text, EXAMPLE, _MARKERS, lambda turn, marker: _read(turn, marker, tools))
    return stray.check(parsed, text, EXAMPLE, tools)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Write calls as the chat template does; a UsageError for a value that its own closing tag would cut."""
    return before_calls(content, "\n".join(_written(call) for call in calls))


def _written(call: ParsedCall) -> str:
    lines = [f"{_OPEN}\n<function={plain_name(call.name, 'qwen3_coder')}>"]
    for key, value in call.arguments.items():
        written = _VALUE.written(key, bare(value) + "\n")
        lines.append(f"<parameter={plain_name(key, 'qwen3_coder')}>\n{written}")
    return "\n".join([*lines, _END, _CLOSE])


def _read(turn: Turn, marker: "re.Match[str]", tools: Schemas) -> int:
    text, begin = turn.text, marker.start()
    if marker[0] == _CLOSE:
        turn.fault(f"{_CLOSE} without {_OPEN} before it", begin)
        return marker.end()
    wrapped = marker[0] == _OPEN
    position = skip_blank(text, marker.end()) if wrapped else begin
    function = _FUNCTION.match(text, position)
    if function is None:
        begin = position + len(_FUNCTION_OPEN) * text.startswith(_FUNCTION_OPEN, position)
        return turn.skip(turn.instead("<function=NAME>", position), position, _MARKERS, _CLOSE, begin)
    arguments, position, reason = _arguments(text, function.end(), Typing(tools, function[1]))
    if not reason and not text.startswith(_END, position):
        reason = f"a <parameter=...> or {_END}"
    if reason:
        return turn.skip(turn.instead(reason, position), position, _MARKERS, _CLOSE)
    position = skip_blank(text, position + len(_END))
    closed = text.startswith(_CLOSE, position)
    if wrapped and not closed and position < len(text) and not text.startswith(_FUNCTION_OPEN, position):
        return turn.skip(turn.instead(f"{_CLOSE} after {_END}", position), position, _MARKERS, _CLOSE)
    turn.add(ParsedCall(function[1], arguments, not (wrapped and closed)), begin)
    return position + len(_CLOSE) * closed


def _arguments(text: str, position: int, typing: Typing) -> tuple[dict[str, Any], int, str]:
    """The parameters behind a function's name, where they end, and what is missing there ("" when nothing is)."""
    arguments: dict[str, Any] = {}
    position = skip_blank(text, position)
    while key := _KEY.match(text, position):
        value = _VALUE.read(text, key.end())
        if value is None:
            return arguments, key.end(), f"{_VALUE.closer} after <parameter={key[1]}>"
        arguments[key[1]] = typing.read(key[1], value[0].removesuffix("\n"))
        position = skip_blank(text, value[1])
    return arguments, position, ""
