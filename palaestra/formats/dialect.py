"""Common code of the dialects: find the marks of calls in a turn, and write a turn as its content and then its calls.

Left out: how to read a call at a mark, which each dialect's own module defines.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from palaestra.formats import stray
from palaestra.formats.parsed import Parsed, ParsedCall, Schemas
from palaestra.formats.scanning import MarkReader, TurnScan, walk


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form in which one family of models writes calls. A format's module has the methods as its functions."""

    example: str
    markers: "re.Pattern[str]"
    reader: MarkReader
    writer: Callable[[ParsedCall], str]
    opener: str = ""
    closer: str = ""
    """Tags around a call; a closing tag where a call is expected is a fault."""
    between: str = "\n"
    """Separator between calls, and between the content and the first call."""

    def parse(self, text: str, tools: Schemas = ()) -> Parsed:
        """Read a turn: its calls and faults in order, and the text around them."""
        turn = TurnScan(text, self.example, self.markers, tools)
        parsed = walk(turn, self._read)
        return parsed if turn.final else stray.check(parsed, turn)

    def render(self, calls: Iterable[ParsedCall], content: str = "") -> str:
        """Return a turn as text. Raise a UsageError if the dialect cannot write it."""
        return before_calls(content, self.between.join(map(self.writer, calls)), self.between)

    def _read(self, turn: TurnScan, marker: "re.Match[str]") -> int:
        if self.closer and marker[0] == self.closer:
            turn.fault(f"{self.closer} without {self.opener} before it", marker.start())
            return marker.end()
        return self.reader(turn, marker)


def before_calls(content: str, written: str, between: str = "\n") -> str:
    """Return the content followed by the calls."""
    return content + between + written if content and written else content or written
