"""The hermes call format: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call.

Written by Qwen2.5, Qwen3, Hermes and many fine-tunes. `parse` reads any string in linear time: tags are found
by one forward scan, and JSON is decoded from the opening tag on, so that a `</tool_call>` inside a JSON string
ends nothing. Left out: repairing broken JSON (trailing commas, single quotes). The agent is told and tries again.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from palaestra.formats import Fault, Parsed, ParsedCall

EXAMPLE = '<tool_call>{"name": "tool", "arguments": {"argument": "value"}}</tool_call>'
MAX_BLOCKS = 64
"""Calls read in one turn. A degenerate sample repeats the tag thousands of times; the cap also keeps the time linear,
since one unclosed string can make the decoder look at the rest of the turn."""

_OPEN, _CLOSE, _THINK, _UNTHINK = "<tool_call>", "</tool_call>", "<think>", "</think>"
_TAG = re.compile(r"</?(?:tool_call|think)>")
_BLANK = re.compile(r"[ \t\r\n]*")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# strict=False lets raw newlines stand inside strings: models write code that way.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def parse(text: str) -> Parsed:
    """Read a turn: its calls and faults in order, and the text around them."""
    content: list[str] = []
    calls: list[ParsedCall | Fault] = []
    thought = False
    position = 0
    while True:
        tag = _TAG.search(text, position)
        if tag is None:
            content.append(text[position:])
            break
        content.append(text[position : tag.start()])
        position = tag.end()
        if tag[0] == _THINK:
            thought = True
            end = text.find(_UNTHINK, position)
            if end < 0:  # Thinking that never ended: nothing after it was said aloud.
                break
            position = end + len(_UNTHINK)
        elif tag[0] == _UNTHINK:
            if not thought:  # Some chat templates write the opening tag themselves, so the turn began as thinking.
                content.clear()
                calls.clear()
            thought = True
        elif len(calls) >= MAX_BLOCKS:
            calls.append(_fault(f"more than {MAX_BLOCKS} calls in one turn; the rest was not read", tag.start()))
            break
        elif tag[0] == _CLOSE:
            calls.append(_fault(f"{_CLOSE} without {_OPEN} before it", tag.start()))
        else:
            call, position = _block(text, position)
            calls.append(call)
    return Parsed("".join(content).strip(), tuple(calls))


def render(calls: Iterable[ParsedCall]) -> str:
    """Write calls as an agent would."""
    return "\n".join(
        _OPEN
        + json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False, allow_nan=False)
        + _CLOSE
        for call in calls
    )


def _fault(reason: str, position: int) -> Fault:
    return Fault(f"malformed call at character {position}: {reason}. Write it like {EXAMPLE}", position)


def _skip_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _block(text: str, position: int) -> tuple[ParsedCall | Fault, int]:
    """Read one call from behind its opening tag; also where reading goes on."""
    begin = _skip_blank(text, position)
    value, end, reason = _decode(text, begin)
    if reason:
        return _fault(reason, end), _next_block(text, position)
    end = _skip_blank(text, end)
    if text.startswith(_CLOSE, end):
        return _call(value, begin), end + len(_CLOSE)
    if end == len(text):  # A generation stopped by the closing tag, or cut right behind the JSON: nothing is missing.
        return _call(value, begin), end
    return _fault(f"expected {_CLOSE} after the JSON, found {text[end : end + 20]!r}", end), _next_block(text, end)


def _next_block(text: str, position: int) -> int:
    """Behind a faulty block: after its closing tag, or at the next opening tag where it has none."""
    tag = _TAG.search(text, position)
    while tag is not None and tag[0] in (_THINK, _UNTHINK):
        tag = _TAG.search(text, tag.end())
    if tag is None:
        return len(text)
    return tag.end() if tag[0] == _CLOSE else tag.start()


def _decode(text: str, position: int) -> tuple[Any, int, str]:
    """A JSON value, where it ends, and what is wrong with it ("" when nothing is)."""
    if position >= len(text):
        return None, position, "the JSON is missing"
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        return None, error.pos, f"not valid JSON: {error.msg}"
    except RecursionError:
        return None, position, "the JSON is nested too deeply"
    except ValueError as error:  # Integers of thousands of digits, NaN.
        return None, position, f"not valid JSON: {str(error).split(';')[0]}"
    return value, end, ""


def _call(value: Any, position: int) -> ParsedCall | Fault:
    """Turn a decoded value into a call."""
    if not isinstance(value, dict):
        return _fault("the JSON is not an object", position)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return _fault('"name" must be a non-empty string', position)
    arguments = next((value[key] for key in ("arguments", "parameters", "args") if key in value), None)
    if isinstance(arguments, str):  # Some models write the arguments as JSON inside a string.
        inner = arguments
        arguments, end, reason = _decode(inner, _skip_blank(inner, 0))
        if reason or _skip_blank(inner, end) != len(inner):
            return _fault(f'"arguments" is a string that is not JSON ({reason or "text after it"})', position)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return _fault('"arguments" must be an object', position)
    return ParsedCall(name, arguments)
