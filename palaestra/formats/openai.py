"""The openai call format: a chat message in which a server has parsed the `tool_calls`, as a dict or as JSON text.

    {"role": "assistant", "content": ..., "tool_calls": [{"id": ..., "function": {"name": ..., "arguments": "{...}"}}]}

An action is text, so an agent behind such a server writes the message as JSON. Text that is not such a message is
content. Left out: the `id`s, since results are returned in the order of the calls, and other kinds of calls than
functions.
"""

import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats import stray
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import THINK, TurnScan, strip_thinking, walk
from palaestra.formats.values import as_call, decode, dump

EXAMPLE = (
    '{"role": "assistant", "tool_calls": [{"type": "function", "function": '
    '{"name": "tool", "arguments": "{\\"argument\\": \\"value\\"}"}}]}'
)
MARK = r'(?:\A|(?<=</think>))\s*+(?=\{\s*+"(?:role|content|tool_calls)"\s*+:)'
"""Pattern of the beginning of a message in JSON: at the start of the turn or after its thinking."""

_MARKERS = re.compile(rf"{MARK}|{THINK}")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a message written as JSON; any other text is content."""
    turn = TurnScan(text, EXAMPLE, _MARKERS, tools)
    return stray.check(walk(turn, _read), turn)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Return a message as an OpenAI-compatible server sends it, as JSON text."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    functions = [{"name": call.name, "arguments": dump(call.arguments)} for call in calls]
    tool_calls = [{"id": f"call_{i}", "type": "function", "function": function} for i, function in enumerate(functions)]
    return dump(message | {"tool_calls": tool_calls} if tool_calls else message)


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, begin = turn.text, marker.end()
    value, end, reason, _ = decode(text, begin)
    if reason:
        if '"tool_calls"' in text:
            turn.fault(reason, end)
            return len(text)
    elif "tool_calls" in value or value.get("role") == "assistant":
        turn.content.append(strip_thinking(_text(value.get("content"))).content)
        tool_calls = value.get("tool_calls")
        if tool_calls is not None and tool_calls != []:
            _add(turn, tool_calls, begin)
        return end
    turn.content.append(text[begin:])
    return len(text)


def _add(turn: TurnScan, tool_calls: Any, position: int) -> None:
    """Add the calls of a message to the turn."""
    if isinstance(tool_calls, list):
        turn.add_all([_call(item) for item in tool_calls], position)
    else:
        turn.fault('"tool_calls" must be a list', position)


def _call(item: Any) -> ParsedCall | str:
    """Return the call of an item, or the reason why it is not a call."""
    function = item.get("function") if isinstance(item, dict) else None
    if function is None:
        return 'an item of "tool_calls" has no "function"'
    # In this form JSON in a string is exact.
    exact = isinstance(function, dict) and isinstance(function.get("arguments"), str)
    call = as_call(function | {"arguments": "{}"} if exact and function["arguments"] == "" else function)
    return ParsedCall(call.name, call.arguments, not exact) if isinstance(call, ParsedCall) else call


def _text(content: Any) -> str:
    """Return the content of a message: its text, or the joined text of its parts, or ""."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
