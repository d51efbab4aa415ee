"""The auto call format: the dialect that the turn's own marks show.

The earliest mark outside thinking decides, and the whole turn is read in that one dialect:

1. marks that only one dialect writes: harmony's channels, deepseek's and mistral's special tokens, `<function=`
   (qwen3_coder), `<|python_tag|>` (llama3), a turn that is a message in JSON (openai), and `<tool_call>`: qwen3_coder
   before `<function=`, glm before a name, hermes otherwise;
2. where there are none, marks that may stand in prose: a line that begins with a bare call (llama3), tags that are
   closed and not quoted (`<code>` only on a line of its own or around a fence), fences;
3. where there are none either, the turn is an answer.

For trying models out and for mixed collections. A training run pins its format (`detect`): here a change of dialect
goes unnoticed. Calls are written as hermes. Left out: turns in more than one dialect.
"""

import re
from functools import partial
from operator import itemgetter
from typing import Any

from palaestra.formats import deepseek, fence, glm, harmony, hermes, llama3, mistral, openai, qwen3_coder, stray, tags
from palaestra.formats.parsed import Format, Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import NAME, THINK, TurnScan, first_marks, strip_thinking

EXAMPLE, render = hermes.EXAMPLE, hermes.render

_SURE: dict[str, tuple[Format, str]] = {
    "harmony": (harmony, rf"<\|(?:channel|message)\|>|\A\s*+(?:assistant\s*+)?to={NAME}"),
    "deepseek": (deepseek, r"<｜tool▁calls?▁(?:begin|end)｜>"),
    "mistral": (mistral, r"\[TOOL_CALLS\]"),
    "qwen3_coder": (qwen3_coder, r"(?:<tool_call>\s*+)?<function="),
    "glm": (glm, rf"<tool_call>\s*+(?={NAME})"),
    "hermes": (hermes, r"</?tool_call>"),
    "llama3": (llama3, r"<\|python_tag\|>"),
    "openai": (openai, openai.MARK),
}
_MARKERS = re.compile("|".join(f"(?P<{name}>{mark})" for name, (_, mark) in _SURE.items()) + f"|{THINK}")


def parse(text: str, tools: Schemas = ()) -> Parsed:
    """Read a turn in the dialect it is written in."""
    sure = [_SURE[mark.lastgroup][0].parse for mark in first_marks(text, _MARKERS) if mark.lastgroup]
    parsed = _first_with_calls(sure, text, tools)
    if parsed and parsed.calls:
        return parsed
    careful = tags.careful(text, tools)
    tagged = (partial(tags.parse, pattern=careful), careful)
    maybe = [
        (mark.start(), place, read)
        for place, (read, marks) in enumerate(((llama3.parse, llama3.MARKERS), tagged, (fence.parse, fence.MARKERS)))
        for mark in first_marks(text, marks)
    ]
    return (
        _first_with_calls([read for *_, read in sorted(maybe, key=itemgetter(0, 1))], text, tools)
        or parsed
        or stray.check(strip_thinking(text), TurnScan(text, EXAMPLE, tools=tools))
    )


def _first_with_calls(readers: list[Any], text: str, tools: Schemas) -> Parsed | None:
    """Return the turn as read by the first dialect that finds a call in it, else a fault, else anything."""
    results = [read(text, tools) for read in dict.fromkeys(readers)]
    readable = [parsed for parsed in results if any(isinstance(call, ParsedCall) for call in parsed.calls)]
    faulty = [parsed for parsed in results if parsed.calls]
    return next(iter([*readable, *faulty, *results]), None)
