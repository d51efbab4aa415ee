"""The tags call format: `<search>what to look for</search>`, one tag per tool, and `<answer>` around the answer.

The dialect of Search-R1 (2503.09516), ReTool (2504.11536) and GEM. Which tags are calls is known from the tools'
schemas; without any, `search`, `python` and `code` are. `<code>` means the python tool, and a fence inside it is
removed. Bare text is the tool's main argument, typed by its schema; an object in JSON is all of its arguments. A turn
without calls is an answer: the text of its `<answer>`, or else the whole turn. If a tag is opened several times before
it is closed, the call begins at the last one, since the others were prose; but code may contain such a tag. Left out:
bare text without a closing tag, since nothing shows that it was complete. So an engine that stops at a closing tag must
leave the tag in the turn.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from palaestra.formats.dialect import Dialect, before_calls
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import THINK, TurnScan, plain_name, skip_blank
from palaestra.formats.values import Typing, code_tool, decode, dump, tool_names, with_arguments

EXAMPLE = "<search>what to look for</search>"

_MAIN = {"search": "query", "python": "code"}
"""Main argument of each tool that has a tag even without a schema."""
_CODE = "code"
_FENCE = re.compile(r"```\w*+[ \t]*+\n(.*)\n```\Z", re.DOTALL)


def parse(text: str, tools: Schemas = (), pattern: "re.Pattern[str] | None" = None) -> Parsed:
    """Read a turn: its calls and faults in order, and the answer or the text around them. `pattern` finds the tags."""
    marks = pattern or _markers(tool_names(tools), bool(code_tool(tools)))
    return Dialect(EXAMPLE, marks, _read, _written).parse(text, tools)


def render(calls: Iterable[ParsedCall], content: str = "") -> str:
    """Return calls after their content; content without calls is an answer."""
    written = [_written(call) for call in calls]
    if content and not written:
        return f"<answer>{content}</answer>"
    return before_calls(content, "\n".join(written))


def careful(text: str, tools: Schemas = ()) -> "re.Pattern[str]":
    """Return a pattern of these tools' tags that finds only tags that are rare in prose: tags that are closed and not
    quoted, and `<code>` on a line of its own or around a fence.
    """
    closed = tuple(name for name in tool_names(tools) or _MAIN if f"</{name}>" in text)
    return _careful(closed, bool(code_tool(tools)))


def _written(call: ParsedCall) -> str:
    name = plain_name(call.name, "tags")
    text = call.arguments.get(_MAIN.get(name, ""))
    if len(call.arguments) != 1 or not isinstance(text, str) or not _survives(text, name):
        text = dump(call.arguments)
    return f"<{name}>{text}</{name}>"


def _survives(text: str, name: str) -> bool:
    """Return whether text that is written between tags would be read back unchanged."""
    tagged = f"<{name}>" in text or f"</{name}>" in text
    return text == _body(text) and not text.startswith("{") and not tagged


@lru_cache(maxsize=256)
def _markers(names: tuple[str, ...], code: bool) -> "re.Pattern[str]":
    tags = {*(names or _MAIN), "answer", *([_CODE] if code else [])} - {"think"}
    return re.compile(rf"</?(?:{'|'.join(map(re.escape, sorted(tags)))})>|{THINK}")


@lru_cache(maxsize=256)
def _careful(names: tuple[str, ...], code: bool) -> "re.Pattern[str]":
    tags = sorted({*names, "answer"} - {"think", _CODE})
    patterns = [rf"(?<![`'\"])<(?:{'|'.join(map(re.escape, tags))})>", "</answer>", THINK]
    if code or _CODE in names:
        patterns.append(
            rf"(?:^|(?<=</think>))<{_CODE}>(?=[ \t\r]*+$|[^\n]*</{_CODE}>[ \t\r]*+$)|<{_CODE}>(?=[ \t\r\n]*+```)"
        )
    return re.compile("|".join(patterns), re.MULTILINE)


def _read(turn: TurnScan, marker: "re.Match[str]") -> int:
    text, tools, position, tag = turn.text, turn.tools, marker.end(), marker[0].strip("</>")
    closer = f"</{tag}>"
    if marker[0] == closer:
        if tag != "answer":
            turn.fault(f"{closer} without <{tag}> before it", marker.start())
        return position
    end = text.find(closer, position)
    if tag == "answer":
        end = end if end >= 0 else len(text)
        turn.final.append(text[position:end] + "\n")
        return min(end + len(closer), len(text))
    begin = skip_blank(text, position)
    typing = Typing(tools, tag)
    if tag == _CODE and not typing.offered:
        typing = Typing(tools, code_tool(tools))
    if text.startswith("{", begin):
        value, behind, reason, lenient = decode(text, begin)
        behind = skip_blank(text, behind)
        closed = text.startswith(closer, behind)
        if not reason and (closed or behind == len(text)):
            turn.add(with_arguments(typing.name, value, lenient or not closed), begin)
            return behind + len(closer) * closed
    if end < 0:
        return turn.skip(f"<{tag}> has no {closer}", position, closer)
    again = text.rfind(marker[0], position, end) if typing.name != code_tool(tools) else -1
    if again >= 0:
        turn.content.append(text[marker.start() : again])
        begin = position = again + len(marker[0])
    key = _MAIN.get(typing.name, "")
    key = key if key in typing.properties or (key and not typing.offered) else typing.main
    body = _body(text[position:end])
    arguments: dict[str, Any] = {key: typing.read(key, body)} if key else {}
    turn.add(ParsedCall(typing.name, arguments, again >= 0 or (bool(body) and not key)), begin)
    return end + len(closer)


def _body(text: str) -> str:
    """Return the text without a fence and blanks around it. If it has several lines, their indents stay."""
    lines = text.strip("\r\n")
    lines = lines if "\n" in lines else lines.strip()
    fence = _FENCE.match(lines)
    return fence[1] if fence else lines
