"""Resource limits of a program.

Every backend enforces all of them, or names in its capabilities those that it cannot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Self

from palaestra.errors import UsageError

LEAST = {"memory_bytes": 4 * 2**20, "open_files": 16}
"""Smallest allowed values: with less, no interpreter starts, or the isolation cannot be set up."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one session. Its processes count together, unless a field says otherwise."""

    seconds: float = 5.0
    """Wall time of one run in seconds, if the run does not set its own timeout."""
    cpu_seconds: float = 60.0
    """Maximum CPU seconds of all processes of the session in one run. A run that uses more is killed."""
    memory_bytes: int = 512 * 2**20
    """Maximum memory of all processes of the session together, including files in the scratch folders."""
    processes: int = 32
    """Maximum number of processes and threads alive at once."""
    file_bytes: int = 16 * 2**20
    """Maximum bytes of one file."""
    scratch_bytes: int = 64 * 2**20
    """Maximum bytes of all files in the scratch folders together."""
    scratch_files: int = 4096
    """Maximum number of files and folders in the scratch folders together."""
    output_bytes: int = 8192
    """Bytes to keep of each of stdout and stderr: half from the head, half from the tail."""
    code_bytes: int = 2**20
    """Maximum bytes of one program, and of its stdin."""
    open_files: int = 256
    """Maximum number of open files of one process."""

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
    def of(cls, limits: Self | Mapping[str, Any] | None, usual: Self | None = None) -> Self:
        """Return a caller's limits.

        A field that a mapping leaves out is taken from `usual`; None returns `usual` itself.
        """
        if isinstance(limits, cls):
            return limits
        usual = usual or cls()
        if limits is None:
            return usual
        if not isinstance(limits, Mapping):
            raise UsageError(
                f"limits is {limits!r}; expected Limits, as in Limits(seconds=5), or a mapping of its fields"
            )
        names = [field.name for field in fields(cls)]
        for name in limits:
            if name not in names:
                close = get_close_matches(str(name), names, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise UsageError(f"limits has no {name!r}; {hint}known: {', '.join(names)}")
        return replace(usual, **limits)

    def narrowed(self, limits: Self | Mapping[str, Any] | None) -> Self:
        """Return the requested limits, or these limits for None. Raise UsageError if a requested limit is higher."""
        limits = self.of(limits, self)
        for field in fields(limits):
            value, max_value = getattr(limits, field.name), getattr(self, field.name)
            if value > max_value:
                raise UsageError(f"limit {field.name} is {value}; this sandbox gives at most {max_value}")
        return limits

    def within(self, widest: Self) -> Self:
        """Return these limits, each lowered to the value in `widest` if it is higher."""
        names = [field.name for field in fields(self)]
        return type(self)(**{name: min(getattr(self, name), getattr(widest, name)) for name in names})
