"""The result types of all call formats, and the interface of a format.

Left out: how each format reads and writes (one module each), and the table of formats (the package itself).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from palaestra.frozen import statically_frozen

Schemas = Sequence[Mapping[str, Any]]
"""The tools' schemas in the OpenAI form, for dialects that write values as bare text."""


@statically_frozen
class ParsedCall:
    """A well-formed call. It is not yet checked whether the tool exists and takes these arguments."""

    name: str
    arguments: dict[str, Any]
    lenient: bool = field(default=False, compare=False)
    """True for a call whose form is not exact: a trailing comma, another key for the arguments, no closing tag. A
    reward for correct form can read it."""


@statically_frozen
class CallParseError:
    """A call that could not be read. `text` names the fault, the position and a correct example."""

    text: str
    position: int
    """Index of the character in the turn where reading failed."""


@statically_frozen
class Parsed:
    """A parsed turn: `content` is its text without calls and thinking, stripped."""

    content: str
    calls: tuple[ParsedCall | CallParseError, ...] = ()
    """Calls and faults in the order they were written."""

    @property
    def is_answer(self) -> bool:
        """True if the turn has no call and no fault."""
        return not self.calls


class Format(Protocol):
    """Interface of a format's module."""

    EXAMPLE: str
    """A call in one line; every fault shows it."""

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """Read a turn; never raises. Values written as bare text are typed by the schemas in `tools`."""

    def render(self, calls: Iterable[ParsedCall], content: str = "") -> str:
        """Return a turn that `parse` reads back. Raise a UsageError if the dialect cannot write it."""
