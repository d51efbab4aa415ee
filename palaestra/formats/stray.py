"""Find a call that is written in a form that the turn's dialect does not read, and report it as a fault, not an answer.

Small models omit the tags around a call, or write the tags of another family. So the content of a turn without calls is
checked again. It is a fault if it calls an offered tool in one of these forms:

- between the marks of any dialect (`_MARKS`), known or not: a tag or a special token whose name contains a word such as
  tool, function or call, then the name, then another such tag; or the name and its arguments in brackets;
- in JSON with the tool's name and arguments: bare, in a list, fence or any tags, or in the form of a server's message;
- `[tool(argument=value)]`, or a tag with the tool's name around its argument.

The call must end the turn, or begin a line outside fences and be closed by a mark. Everything else stays the answer: a
call quoted in prose, JSON that calls no offered tool or is only part of other JSON, code, and a turn with an
`<answer>`. Left out: running such a call.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from palaestra.formats.parsed import Parsed
from palaestra.formats.scanning import MAX_CALLS, MAX_QUOTED, TurnScan
from palaestra.formats.values import SPELLINGS, decode

MAX_BETWEEN = 60
"""Maximum characters between a mark and the name, and between the name and its arguments."""
MAX_ENDING = 200
"""Characters at the end of a turn that are searched for its last closing mark."""

_LAST = frozenset("}])>`")
"""Last characters that such a call can have: text with another one and without a tag is a plain answer."""
_NAMES = ("name", "function", "tool_name", "tool", "action")
_ARGUMENTS = (*SPELLINGS, "action_input")
_KEYS = frozenset({"type", "id", "tool_call_id", *_NAMES, *_ARGUMENTS})
_OBJECT = re.compile(rf"(?:\[\s*+)?\{{\s*+\"(?:role|content|function_call|tool_calls|{'|'.join(sorted(_KEYS))})\"\s*+:")
_TAG = (
    r"(?:<[/|｜]*+[\w:|｜.▁-]{0,30}?(?<![a-zA-Z])"
    r"(?:tools?|TOOLS?|functions?|invoke|actions?|ACTION|plugin|python(?=_)|recipient)(?![a-z])"
    r"[\w:|｜▁-]{0,30}+(?:[=>]|\s\w+[=>])|<\|(?:open|close)\|>(?:call|tools)\b)"
)
"""A tag or special token by which any family opens, divides or closes a call: `<tool_call>`, `<|tool_call_start|>`,
`<minimax:tool_call>`, `<｜DSML｜invoke name=`, `<function=`, `<|START_ACTION|>`, `<end_function_call>`."""
_MARKS = {
    "tag": rf"{_TAG}[^<]{{0,{MAX_BETWEEN}}}?|^```tool_(?:code|call)s?\n[^\n]{{0,{MAX_BETWEEN}}}?",  # Gemma 3: fences.
    "word": r"\[TOOL_CALLS\]"  # Mistral
    r"|\bto=(?:functions\.)?"  # Harmony, its special tokens lost
    r"|\bfunctions\.(?=[\w.-]+:\d)"  # Kimi K2, likewise
    r"|\bcall:"  # Gemma 4, likewise
    r"|^\**Action:\**[ \t]*+"  # ReAct
    r"|✿FUNCTION✿:[ \t]*+"  # Qwen-Agent
    r"|^>>>(?=[\w.-]+\n\{)",  # Functionary
}
"""Patterns of the text before the name of a called tool."""
_CLOSER = re.compile(rf"{_TAG}|^\**Action Input:", re.MULTILINE)
_BEHIND = r"(?:[\s;]|<(?!/answer>)[^\s<>]{1,40}>|\[unused\d+\]|`{3})*+\Z"
"""Pattern of the text after a call that ends a turn: tags, special tokens and the end of a fence."""
_REST = re.compile(_BEHIND)
_ENDING = re.compile(rf"(?:(?P<tag>{_TAG})|[)}}])[])]*+{_BEHIND}")


def check(parsed: Parsed, turn: TurnScan) -> Parsed:
    """Return the turn with a fault if it has no call but calls an offered tool in another form; else unchanged."""
    content = parsed.content
    if parsed.calls or not content:
        return parsed
    if "<" not in content:
        if content[-1] not in _LAST:
            if ":" not in content or "Action Input:" not in content:
                return parsed
        elif content[-1] == "}" and ":" not in content and not content.endswith("{}"):  # \\boxed{42}
            return parsed
    names = [name for tool in turn.tools if (name := tool["function"]["name"]) in content]
    tool_call = (_object(content, names) or _marked(content, names)) if names and "<answer>" not in content else None
    if tool_call is None:
        return parsed
    name, begin = tool_call
    # The content lacks the turn's thinking, so the position is found by the text there.
    position = max(turn.text.rfind(content[begin : begin + MAX_QUOTED]), 0)
    turn.fault(f"a call of {name} in a form that is not read here", position)
    return Parsed(content, tuple(turn.calls))


def _object(content: str, names: Sequence[str]) -> tuple[str, int] | None:
    """Return the tool that the JSON at the end calls, and where the JSON begins; None if there is none."""
    position = 0
    for _ in range(MAX_CALLS):
        opener = _OBJECT.search(content, position)
        if opener is None:
            break
        value, end, reason, _ = decode(content, opener.start())
        if not reason and _REST.match(content, end):
            name = _called(value, names)
            return (name, opener.start()) if name else None
        position = opener.end() if reason else end
    return None


def _called(value: Any, names: Sequence[str]) -> str:
    """Return the first tool that a decoded value calls; "" unless it holds only calls of these tools."""
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    names_called = [_name(item, names) for item in (value if isinstance(value, list) else [value])]
    return names_called[0] if names_called and all(names_called) else ""


def _name(item: Any, names: Sequence[str]) -> str:
    """Return the tool that an object calls, if it has a name, arguments and only keys of calls; else ""."""
    if not isinstance(item, dict):
        return ""
    inner = next((item[key] for key in ("function_call", "function") if isinstance(item.get(key), dict)), item)
    has_arguments = any(isinstance(inner.get(key), dict | str) for key in _ARGUMENTS)
    name = next((inner[key] for key in _NAMES if key in inner), None)
    return name if has_arguments and _KEYS.issuperset(inner) and isinstance(name, str) and name in names else ""


def _marked(content: str, names: Sequence[str]) -> tuple[str, int] | None:
    """Return the first tool whose name is between two marks, or between a mark and its arguments, and the index of the
    first mark; None if there is no such tool.
    """
    position = 0
    pattern = _pattern(tuple(names))
    for _ in range(MAX_CALLS):
        mark = pattern.search(content, position)
        if mark is None:
            break
        name = mark["name"] or mark["listed"] or mark["own"]
        ending = _ENDING.search(content, max(mark.end(), len(content) - MAX_ENDING))
        if (
            mark["listed"]
            or (mark["own"] and content.endswith(f"</{name}>"))
            or (ending and (mark["bracket"] == "{" or (mark["bracket"] and mark["tag"] is not None)))
            or (_CLOSER.search(content, mark.end()) and ((ending and ending["tag"]) or _apart(content, mark.start())))
        ):
            return name, mark.start()
        position = mark.end()
        if mark["object"]:
            position += len(mark["object"])
            _, end, reason, _ = decode(content, position - 1)
            if not reason and _REST.match(content, end):
                return name, mark.start()
            position = position if reason else end
    return None


def _apart(content: str, begin: int) -> bool:
    """Return whether a position outside fences is at the beginning of a line, or follows only tags in its line."""
    before = content[content.rfind("\n", 0, begin) + 1 : begin].lstrip()
    return before[:1] in ("", "<", "]") and content.count("```", 0, begin) % 2 == 0


@lru_cache(maxsize=256)
def _pattern(names: tuple[str, ...]) -> "re.Pattern[str]":
    called = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(
        rf"(?:(?P<tag>{_MARKS['tag']})|{_MARKS['word']})(?<![\w-])(?P<name>{called})(?![\w-])"
        rf"(?=(?:\.call)?(?P<bracket>[({{])?)(?=(?P<object>[^{{]{{0,{MAX_BETWEEN}}}+\{{)?)"
        rf"|^\[(?P<listed>{called})\((?=\w+=[^=]|\)\])[^\n]*(?<=\)\])\Z"
        rf"|^<(?P<own>{called})>",
        re.MULTILINE,
    )
