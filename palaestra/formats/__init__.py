"""Call formats: the text form of a tool call, as an agent writes it and an environment reads it.

A format is a module with two functions: `parse(text, tools=()) -> Parsed`, which raises no error for any text, and
`render(calls, content="") -> str`, its inverse. Most are methods of a `Dialect`. Rules for all formats:

- A fault names what is wrong and where, and shows the right form of its own dialect. A turn without calls and without
  faults is the answer; content is the text outside calls and thinking.
- A turn that calls an offered tool as another dialect writes it is a fault too (`stray`), not the answer.
- Calls come in the order they are written, at most `scanning.MAX_CALLS` a turn. `<think>...</think>` is never read
  for calls, closed or not.
- A last call without its closing tag counts if it is provably complete, as closed JSON is. A call that was read
  leniently is marked.
- Values written as bare text are typed by the tools' schemas. Time is linear in the length of the turn.

Left out on purpose: checking arguments against a tool's schema (`envs.core.tool`) and turning tool results into
tokens (`agents.chat`).
"""

from functools import cache
from importlib import import_module
from typing import cast

from palaestra.errors import ConfigError, UsageError, unknown_name
from palaestra.formats.detection import detect
from palaestra.formats.parsed import CallParseError, Format, Parsed, ParsedCall
from palaestra.formats.parsed import Schemas as Schemas

__all__ = [
    "DEFAULT",
    "FORMATS",
    "CallParseError",
    "Format",
    "Parsed",
    "ParsedCall",
    "detect",
    "get",
    "translate",
    "validate",
]

DEFAULT = "hermes"
"""Format that environments read by default, and that demonstrators write."""

FORMATS = (
    "hermes", "qwen3_coder", "llama3", "harmony", "mistral", "deepseek", "glm", "tags", "fence", "openai", "auto"
)  # fmt: skip
"""Names of all formats, for an environment's option `format`; each is a module of this package."""


@cache
def get(name: str) -> Format:
    """Return the format of that name. Raise a ConfigError if there is none."""
    if name not in FORMATS:
        raise ConfigError(unknown_name("call format", name, FORMATS))
    return cast(Format, import_module(f"palaestra.formats.{name}"))


def validate(name: str) -> str:
    """Return the name. Raise a ConfigError if there is no such format."""
    get(name)
    return name


def translate(text: str, target: str, tools: Schemas = (), source: str = DEFAULT) -> str:
    """Return a turn in the format `target`: its text and thoughts stay, its calls are rendered again.

    Demonstrators write hermes, and recorded episodes hold the format of their environment; an agent of another family
    writes calls in another form. A turn that `target` already reads as calls, one without a call, and one with a fault,
    which must stay that fault, are returned unchanged. Raise a UsageError if the target cannot write these calls.
    """
    if source == target:
        return text
    read, write = get(source), get(target)
    parsed = read.parse(text, tools)
    if not _sound(parsed) or _sound(write.parse(text, tools)):
        return text
    thought, mark, after_thoughts = text.rpartition("</think>")
    spoken = read.parse(after_thoughts, tools)
    written = write.render([call for call in spoken.calls if isinstance(call, ParsedCall)], spoken.content)
    turn = f"{thought}{mark}\n{written}" if mark else written
    if write.parse(turn, tools).calls != parsed.calls:
        # A thought ends inside a call, or some text of the turn has a special meaning in the target format.
        raise UsageError(f"this turn cannot be written in another format: {text[:200]!r}")
    return turn


def _sound(parsed: Parsed) -> bool:
    """Return whether a turn has calls and no fault."""
    return bool(parsed.calls) and all(isinstance(call, ParsedCall) for call in parsed.calls)
