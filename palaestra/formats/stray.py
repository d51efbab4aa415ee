"""A call in a form that the turn's dialect does not read: a fault, where it would have become the answer unnoticed.

Small models leave the tags around a call out, or write those of another family. So what a turn without calls says is
looked at once more, and it is told the right form where it ends in a call of a tool that is offered:

- JSON with the tool's name and arguments, bare, in a list, in a fence, in any tags, or as a server's message has it;
- the name behind one of the `_MARKS` of a dialect, then its arguments in JSON or the closing tag;
- `[tool(argument=value)]`.

Everything else stays the answer: JSON that calls nothing that is offered, or is only part of other JSON, a call with
text behind it, code, and what stands in `<answer>`. Left out: running such a call.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from palaestra.formats.parsed import Parsed, Schemas
from palaestra.formats.scanning import MAX_CALLS, MAX_QUOTED, Turn
from palaestra.formats.values import SPELLINGS, decode

MAX_BETWEEN = 60
"""Characters between a name behind a mark and its arguments."""

_LAST = frozenset("}]>`")
"""What such a call can end with: a plain answer is known by its last character."""
_KEYS = frozenset({"type", "id", "name", "function", *SPELLINGS})
_OBJECT = re.compile(
    r"(?:\[\s*+)?\{\s*+\"(?:id|type|name|role|content|function|function_call|tool_calls|parameters|arguments)\"\s*+:"
)
_REST = re.compile(r"(?:[\s;]|</(?!answer>)\w{1,40}>|<[|｜]/?[\w▁]{1,40}[|｜]>|`{3})*+\Z")
"""What may stand behind a call that ends a turn: closing tags, special tokens and the end of a fence."""
_MARKS = r"<function=|<tool_call>|\bto=|<[|｜]tool[▁_](?:call[▁_]begin|sep)[|｜]>|\[TOOL_CALLS\]"
_CLOSERS = ("</function>", "</tool_call>")


def told(parsed: Parsed, text: str, example: str, tools: Schemas) -> Parsed:
    """The turn with a fault, if it has no call and ends in one of these tools in another form; else as it is."""
    content = parsed.content
    if parsed.calls or not content or content[-1] not in _LAST:
        return parsed
    if content[-1] == "}" and '"' not in content and not content.endswith("{}"):  # \boxed{42}
        return parsed
    names = [name for tool in tools if (name := tool["function"]["name"]) in content]
    found = (_object(content, names) or _marked(content, names)) if names else None
    if found is None:
        return parsed
    name, begin = found
    turn = Turn(text, example)
    # What is said may lack thinking that the turn has, so the place is found by what stands there.
    position = max(text.rfind(content[begin : begin + MAX_QUOTED]), 0)
    turn.fault(f"a call of {name} in a form that is not read here", position)
    return Parsed(content, tuple(turn.calls))


def _object(content: str, names: Sequence[str]) -> tuple[str, int] | None:
    """The tool that the JSON at the end calls, and where it begins."""
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
    """The first tool that a decoded value calls; "" where it is anything else than calls of these tools."""
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    found = [_name(item, names) for item in (value if isinstance(value, list) else [value])]
    return found[0] if found and all(found) else ""


def _name(item: Any, names: Sequence[str]) -> str:
    """The tool that an object calls, if it has its name and arguments and no key that calls do not have."""
    if not isinstance(item, dict):
        return ""
    inner = next((item[key] for key in ("function_call", "function") if isinstance(item.get(key), dict)), item)
    given = any(isinstance(inner.get(key), dict | str) for key in SPELLINGS)
    name = inner.get("name", inner.get("function"))
    return name if given and _KEYS.issuperset(inner) and isinstance(name, str) and name in names else ""


def _marked(content: str, names: Sequence[str]) -> tuple[str, int] | None:
    """The tool that stands behind a mark at the end, and where the mark is."""
    position = 0
    pattern = _pattern(tuple(names))
    for _ in range(MAX_CALLS):
        mark = pattern.search(content, position)
        if mark is None:
            break
        if mark["listed"] or content.endswith(_CLOSERS):
            return mark["listed"] or mark["name"], mark.start()
        position = mark.end()
        if mark["object"]:
            _, end, reason, _ = decode(content, position - 1)
            if not reason and _REST.match(content, end):
                return mark["name"], mark.start()
            position = position if reason else end
    return None


@lru_cache(maxsize=256)
def _pattern(names: tuple[str, ...]) -> "re.Pattern[str]":
    called = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(
        rf"(?:{_MARKS})\s*+(?:functions\.)?(?P<name>{called})(?![\w.-])(?P<object>[^{{]{{0,{MAX_BETWEEN}}}+\{{)?"
        rf"|^\[(?P<listed>{called})\((?=\w+=[^=]|\)\])[^\n]*(?<=\)\])\Z",
        re.MULTILINE,
    )
