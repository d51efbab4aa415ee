"""The auto call format: each turn is read in the dialect that its own marks show.

The earliest mark outside thinking decides, and the whole turn is read in that one dialect:

1. marks that only one dialect writes: harmony's channels, deepseek's and mistral's special tokens, `<function=`
   (qwen3_coder), `<|python_tag|>` (llama3), a turn that is a message in JSON (openai), and `<tool_call>`: qwen3_coder
   before `<function=`, glm before a name, hermes otherwise;
2. if there are none, marks that may also occur in prose: a line that begins with a bare call (llama3), tags that are
   closed and not quoted (`<code>` only on a line of its own or around a fence), fences;
3. if there are none of these either, the turn is an answer.

Use it to try models, and for episodes of several models. A training run has one fixed format (`detect`), since this one
does not show when a model changes its dialect. Calls are written as hermes. Left out: turns in more than one dialect.
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
    """Read a turn in the dialect that its marks show."""
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
    """Return the turn as the first reader parses it that finds a call; if none does, as the first that finds a fault;
    else as the first of all. None if there are no readers.
    """
    results = [read(text, tools) for read in dict.fromkeys(readers)]
    readable = [parsed for parsed in results if any(isinstance(call, ParsedCall) for call in parsed.calls)]
    faulty = [parsed for parsed in results if parsed.calls]
    return next(iter([*readable, *faulty, *results]), None)
