"""What a program may use. Every backend enforces all of it or says in its capabilities which it cannot."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Self

from palaestra.errors import UsageError

LEAST = {"memory_bytes": 4 * 2**20, "open_files": 16}
"""Below these no interpreter begins, or the walls round it cannot be built."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one session: its processes count together, unless a line says otherwise."""

    seconds: float = 5.0
    """Wall time of one run, where the run does not give its own."""
    cpu_seconds: float = 60.0
    """CPU time of the session's processes together: what computes more is ended, and the next run begins with none."""
    memory_bytes: int = 512 * 2**20
    """Memory of the whole tree, files on the scratch folders included."""
    processes: int = 32
    """Processes and threads alive at once."""
    file_bytes: int = 16 * 2**20
    """Size of one file."""
    scratch_bytes: int = 64 * 2**20
    """What the scratch folders hold together."""
    scratch_files: int = 4096
    """How many files and folders the scratch folders hold together."""
    output_bytes: int = 8192
    """Kept of each of stdout and stderr: half from the head, half from the tail."""
    code_bytes: int = 2**20
    """Size of one program, and of what it is given on stdin."""
    open_files: int = 256
    """Open files of one process."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise UsageError(f"limit {field.name} is {value!r}; expected a positive number")
            if field.type is int and not isinstance(value, int):
                raise UsageError(f"limit {field.name} is {value!r}; expected a whole number")
            if value < LEAST.get(field.name, 0):
                raise UsageError(
                    f"limit {field.name} is {value!r}; expected at least {LEAST[field.name]}, which Python itself needs"
                )

    @classmethod
    def of(cls, given: Self | Mapping[str, Any] | None, usual: Self | None = None) -> Self:
        """Limits as a caller gives them: all of them, or a mapping with some; the others are the usual ones."""
        if isinstance(given, cls):
            return given
        usual = usual or cls()
        if given is None:
            return usual
        if not isinstance(given, Mapping):
            raise UsageError(
                f"limits is {given!r}; expected Limits, as in Limits(seconds=5), or a mapping of its fields"
            )
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                close = get_close_matches(str(name), known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise UsageError(f"limits has no {name!r}; {hint}known: {', '.join(known)}")
        return replace(usual, **given)

    def narrowed(self, asked: Self | Mapping[str, Any] | None) -> Self:
        """What was asked for, which must not be wider than these; these where nothing was."""
        asked = self.of(asked, self)
        for field in fields(asked):
            value, most = getattr(asked, field.name), getattr(self, field.name)
            if value > most:
                raise UsageError(f"limit {field.name} is {value}; this sandbox gives at most {most}")
        return asked

    def within(self, most: Self) -> Self:
        """These limits, each cut to what `most` allows."""
        names = [field.name for field in fields(self)]
        return type(self)(**{name: min(getattr(self, name), getattr(most, name)) for name in names})
