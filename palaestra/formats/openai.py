"""The openai call format: a chat message whose `tool_calls` a server has already read, as a dict or as its JSON text.

    {"role": "assistant", "content": ..., "tool_calls": [{"id": ..., "function": {"name": ..., "arguments": "{...}"}}]}

An action is text, so an agent behind such a server says the message as JSON; `parse_message` and `render_message` are
for those that hold the dict. Text that is no such message is content. Left out: what `id`s say, since results come back
in the order of the calls, and other kinds of calls than functions.
"""

import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats import stray
from palaestra.formats.parsed import Format, Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import THINK, Turn, said, walk
from palaestra.formats.values import as_call, decode, dump

EXAMPLE = (
    '{"role": "assistant", "tool_calls": [{"type": "function", "function": '
    '{"name": "tool", "arguments": "{\\"argument\\": \\"value\\"}"}}]}'
)
MARK = r'(?:\A|(?<=</think>))\s*+(?=\{\s*+"(?:role|content|tool_calls)"\s*+:)'
"""Where a message in JSON begins: with the turn or behind its thinking."""

_MARKERS = re.compile(rf"{MARK}|{THINK}")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a message written as JSON; any other text is content."""
    turn = Turn(text, EXAMPLE, _MARKERS, tools)
    return stray.check(walk(turn, _read), turn)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """The JSON text of a message."""
    return dump(render_message(calls, content))


def parse_message(message: Any, text_format: Format | None = None, tools: Schemas = ()) -> Parsed:
    """Read a message of a server; never raises. Without `tool_calls` its content is read in `text_format`, if given."""
    if not isinstance(message, dict):
        message = {"tool_calls": [message]}
    found, content = message.get("tool_calls"), _text(message.get("content"))
    if found is None or found == []:
        return text_format.parse(content, tools) if text_format else said(content)
    turn = Turn(content, EXAMPLE)
    _add(turn, found, 0)
    return Parsed(said(content).content, tuple(turn.calls))


def render_message(calls: Iterable[ParsedCall], content: str = "") -> dict[str, Any]:
    """A message as such a server sends it."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    functions = [{"name": call.name, "arguments": dump(call.arguments)} for call in calls]
    found = [{"id": f"call_{i}", "type": "function", "function": function} for i, function in enumerate(functions)]
    return message | {"tool_calls": found} if found else message


def _read(turn: Turn, marker: "re.Match[str]") -> int:
    text, begin = turn.text, marker.end()
    value, end, reason, _ = decode(text, begin)
    if reason:
        if '"tool_calls"' in text:
            turn.fault(reason, end)
            return len(text)
    elif "tool_calls" in value or value.get("role") == "assistant":
        turn.content.append(said(_text(value.get("content"))).content)
        found = value.get("tool_calls")
        if found is not None and found != []:
            _add(turn, found, begin)
        return end
    turn.content.append(text[begin:])
    return len(text)


def _add(turn: Turn, found: Any, position: int) -> None:
    """The calls of a message."""
    if isinstance(found, list):
        turn.add_all([_call(item) for item in found], position)
    else:
        turn.fault('"tool_calls" must be a list', position)


def _call(item: Any) -> ParsedCall | str:
    """The call that an item means, or why it is none."""
    function = item.get("function") if isinstance(item, dict) else None
    if function is None:
        return 'an item of "tool_calls" has no "function"'
    exact = isinstance(function, dict) and isinstance(function.get("arguments"), str)  # Here JSON in a string is.
    call = as_call(function | {"arguments": "{}"} if exact and function["arguments"] == "" else function)
    return ParsedCall(call.name, call.arguments, not exact) if isinstance(call, ParsedCall) else call


def _text(content: Any) -> str:
    """The content of a message: text, parts with text, or nothing."""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
