"""Call formats: how an agent writes a tool call in text, and how an environment reads it.

A format is a module with two functions: `parse(text) -> Parsed`, which never raises whatever the agent
wrote, and `render(calls) -> str`, its inverse. Left out on purpose: checking arguments against a tool's
schema (`envs.core.tool`) and turning tool results into tokens (`agents.chat`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from palaestra.errors import ConfigError

_MODULES = {"hermes": "palaestra.formats.hermes"}


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A well-formed call. Whether the tool exists and takes these arguments is not known yet."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """A call that could not be read. `text` names the fault, the position and a correct example."""

    text: str
    position: int
    """Index of the character in the turn where reading failed."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a turn says: `content` is its text without calls and thinking, stripped."""

    content: str
    calls: tuple[ParsedCall | Fault, ...] = ()
    """Calls and faults in the order they were written."""

    @property
    def is_answer(self) -> bool:
        """True when the turn asks for nothing: no call and no fault."""
        return not self.calls


class Format(Protocol):
    """What a module of this package offers."""

    def parse(self, text: str) -> Parsed:
        """Read a turn; never raises."""

    def render(self, calls: Iterable[ParsedCall]) -> str:
        """Write calls so that `parse` reads them back."""


@cache
def get(name: str) -> Format:
    """The format of that name."""
    if name not in _MODULES:
        close = get_close_matches(name, _MODULES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known formats: {', '.join(sorted(_MODULES))}"
        raise ConfigError(f"no call format is named {name!r}; {hint}")
    return cast(Format, import_module(_MODULES[name]))
