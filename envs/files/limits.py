"""What a file may cost an agent's environment, and what is said of a file that costs more."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import islice
from typing import TypeVar

from palaestra.errors import ConfigError

T = TypeVar("T")


class Unreadable(Exception):
    """A file that holds no text for an agent; says why."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much of one file is read. What is left out is said where it would stand."""

    file_bytes: int = 32 * 2**20
    """A larger file is refused."""
    unpacked_bytes: int = 128 * 2**20
    """What a zip or office file may unpack to, archives inside it included."""
    members: int = 1000
    """Members of a zip that are named."""
    pages: int = 1000
    """Pages of a PDF, slides of a presentation."""
    rows: int = 20_000
    """Rows of all tables of a document, and of all sheets."""
    cells: int = 256
    """Cells of one row."""
    chars: int = 2**20
    """Characters of text."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"ReadLimits.{one.name} is {value!r}; expected a whole number above 0")

    def cut(self, name: str) -> str:
        """The line that stands in place of what is left out."""
        return f"(cut here: {name}={getattr(self, name)} is the most that is read of a file)"

    def most(self, items: Iterable[T], name: str) -> Iterator[T | str]:
        """So many of the items as `name` allows, and the line that says so where there are more."""
        left = iter(items)
        yield from islice(left, getattr(self, name))
        for _ in left:
            yield self.cut(name)
            return
