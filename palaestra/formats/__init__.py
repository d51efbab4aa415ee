"""Call formats: how an agent writes a tool call in text, and how an environment reads it.

A format is a module with two functions: `parse(text, tools=()) -> Parsed`, which never raises whatever the agent wrote,
and `render(calls, content="") -> str`, its inverse. Most have them of a `dialect`. What holds for all of them:

- A fault names what is wrong and where, and shows the right form of its own dialect. A turn without calls and without
  faults is the answer; content is what is said outside calls and thinking.
- A turn that calls an offered tool as another dialect writes it is a fault too (`stray`), not the answer.
- Calls come in the order they are written, at most `scanning.MAX_CALLS` a turn. `<think>...</think>` is never read
  for calls, closed or not.
- A last call without its closing tag counts if it is provably complete, as closed JSON is. What took leniency is
  marked.
- Values written as bare text are typed by the tools' schemas. Time grows in step with the length of the turn.

Left out on purpose: checking arguments against a tool's schema (`envs.core.tool`) and turning tool results into
tokens (`agents.chat`).
"""

from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import cast

from palaestra.errors import ConfigError, UsageError
from palaestra.formats.detection import detect
from palaestra.formats.parsed import Fault, Format, Parsed, ParsedCall
from palaestra.formats.parsed import Schemas as Schemas

__all__ = ["DEFAULT", "FORMATS", "Fault", "Format", "Parsed", "ParsedCall", "detect", "get", "known", "translate"]

DEFAULT = "hermes"
"""What an environment reads where nobody has chosen, and what demonstrators write."""

FORMATS = (
    "hermes", "qwen3_coder", "llama3", "harmony", "mistral", "deepseek", "glm", "tags", "fence", "openai", "auto"
)  # fmt: skip
"""Every format, by the name that an environment's `format` gives; each is a module of this package."""


@cache
def get(name: str) -> Format:
    """The format of that name."""
    if name not in FORMATS:
        close = get_close_matches(name, FORMATS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known formats: {', '.join(sorted(FORMATS))}"
        raise ConfigError(f"no call format is named {name!r}; {hint}")
    return cast(Format, import_module(f"palaestra.formats.{name}"))


def known(name: str) -> str:
    """The name, if there is such a format."""
    get(name)
    return name


def translate(text: str, target: str, tools: Schemas = (), source: str = DEFAULT) -> str:
    """A turn as `target` writes it: what is said and thought stays, its calls are written anew.

    Demonstrators write hermes, and recorded episodes whatever was read when they were played; an agent of another
    family has other words for a call. A turn that `target` reads as calls already, one without a call, and one with a
    fault, which is to stay the fault that it was, are left as they are. A UsageError where the target has no way to
    write these calls.
    """
    if source == target:
        return text
    read, write = get(source), get(target)
    found = read.parse(text, tools)
    if not _sound(found) or _sound(write.parse(text, tools)):
        return text
    thought, mark, rest = text.rpartition("</think>")
    said = read.parse(rest, tools)
    written = write.render([call for call in said.calls if isinstance(call, ParsedCall)], said.content)
    turn = f"{thought}{mark}\n{written}" if mark else written
    if write.parse(turn, tools).calls != found.calls:
        # A thought ends inside a call, or a word of the turn means something of its own over there.
        raise UsageError(f"this turn cannot be written in another format: {text[:200]!r}")
    return turn


def _sound(parsed: Parsed) -> bool:
    """Calls, and no fault."""
    return bool(parsed.calls) and all(isinstance(call, ParsedCall) for call in parsed.calls)
