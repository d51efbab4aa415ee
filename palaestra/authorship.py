"""Find the line of an environment author's code that raised an exception, without palaestra's own frames.

The environments of the suite count as authors' code too. Left out: how the line is reported, and whether the fault is
the author's at all.
"""

import sys
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType
from typing import Any

_OURS = frozenset({"palaestra", "gymnasium", "pettingzoo", *sys.stdlib_module_names})
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a source file, and the function that contains it."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.number}, in {self.function}"

    @property
    def place(self) -> str:
        """File and line number as text, without the function."""
        return f"{self.file}, line {self.number}"


def authors_line(error: BaseException) -> SourceLine | None:
    """Return the innermost line of an author's code that an exception passed; None if it passed none."""
    return next((line for line in _foreign(error) if not _is_installed(line)), None)


def foreign_line(error: BaseException) -> SourceLine | None:
    """Return the author's innermost line; if there is none, the innermost line of a library that the author called."""
    return authors_line(error) or next(iter(_foreign(error)), None)


def function_name(function: Any) -> str:
    """Return module and name of a function, or of the one that a `partial` calls."""
    function = getattr(function, "func", function)
    return f"{function.__module__}:{getattr(function, '__qualname__', function)}"


def _foreign(error: BaseException) -> list[SourceLine]:
    """Return the lines of the traceback that are in foreign code (`_is_foreign`), innermost first."""
    passed = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_foreign(frame)]
    return [SourceLine(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in reversed(passed)]


def _is_foreign(frame: FrameType) -> bool:
    """Return whether a frame belongs to the suite, or to code outside palaestra, Gymnasium, PettingZoo and Python."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith("palaestra.envs.suite.") or name.partition(".")[0] not in _OURS


def _is_installed(line: SourceLine) -> bool:
    return any(part in line.file for part in _INSTALLED) or line.file.endswith(".pyx")  # A compiled one has no folder.
