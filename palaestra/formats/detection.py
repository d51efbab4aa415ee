"""Detect the call format that a chat template writes, from the template's own text.

A dialect is recognized by marks that no other dialect writes, so the order below only matters where one dialect's marks
contain another's. Left out: running the template, and dialects that the prompt asks for (tags, fence).
"""

import re

_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
# The first row whose every mark is in the template names the format.
_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|call|>")),
    ("deepseek", ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("glm", ("<arg_key>", "<arg_value>")),
    ("hermes", ("<tool_call>", "arguments")),
    ("llama3", ("<|start_header_id|>", '"parameters": ')),
    ("llama3", ("<|python_tag|>",)),
)


def detect(template: str) -> str | None:
    """Return the name of the format in which a chat template writes calls, or None if it is unknown."""
    text = _COMMENT.sub("", template)  # Comments often mention other models.
    return next((name for name, marks in _MARKS if all(mark in text for mark in marks)), None)
