"""Limits for reading one file, and the messages for a file that exceeds them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import islice
from typing import TypeVar

from palaestra.errors import ConfigError

T = TypeVar("T")


class UnreadableFile(Exception):
    """Raised for a file that holds no readable text; the message says why."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits for reading one file. A line in the text marks what is left out."""

    file_bytes: int = 32 * 2**20
    """Largest file in bytes; a larger one is refused."""
    unpacked_bytes: int = 128 * 2**20
    """Largest unpacked size of a zip or office file in bytes, including archives inside it."""
    members: int = 1000
    """Largest number of members of a zip in its listing."""
    pages: int = 1000
    """Largest number of pages of a PDF, or slides of a presentation."""
    rows: int = 20_000
    """Largest number of rows, over all tables of a document or all sheets."""
    cells: int = 256
    """Largest number of cells of one row."""
    chars: int = 2**20
    """Largest number of characters of the text."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"ReadLimits.{limit.name} is {value!r}; expected a whole number above 0")

    def cut(self, name: str) -> str:
        """Return the line that replaces what is left out."""
        return f"(cut here: {name}={getattr(self, name)} is the most that is read of a file)"

    def take(self, items: Iterable[T], name: str) -> Iterator[T | str]:
        """Yield as many items as the limit `name` allows, and then, if there are more, the text of `cut`."""
        left = iter(items)
        yield from islice(left, getattr(self, name))
        for _ in left:
            yield self.cut(name)
            return
