"""The guards that a sandbox enforces on this machine. Each is tested when the sandbox opens, never assumed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

from palaestra.errors import SandboxUnavailable, UsageError


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The guards of an open sandbox, one field each. False means that the sandbox does not enforce the guard."""

    backend: str
    files: bool = False
    """Programs have a separate file system; they cannot read or write files of the host."""
    network: bool = False
    """No socket can connect to anything, not even over loopback."""
    processes: bool = False
    """Programs see and signal only processes of their session."""
    process_count: bool = False
    """The number of processes of a session is bounded, and one session cannot starve another."""
    memory: Literal["tree", "watched", "process", ""] = ""
    """How memory is bounded: the kernel counts the whole tree; the supervisor polls and kills; or each process."""
    syscalls: bool = False
    """Dangerous system calls are refused (seccomp)."""
    landlock: int = 0
    """Version of Landlock, a second protection of files; 0 if it is not used."""
    own_user: bool = False
    """Programs run as a different user than this process."""
    forks: bool = False
    """A live session can be forked."""
    notes: tuple[str, ...] = field(default=())
    """One sentence for each guard that is absent or weaker: what is missing, why, and how to get it."""

    def require(self, *names: str) -> None:
        """Raise SandboxUnavailable if a named guard is not enforced.

        For `memory`, a bound on each process alone is not enough.
        """
        missing = [
            name
            for name in guards_of(names)
            if not getattr(self, name) or (name == "memory" and self.memory == "process")
        ]
        if missing:
            raise SandboxUnavailable(self.backend, f"not enforced here: {', '.join(missing)}", self.notes)


def guards_of(names: Any) -> tuple[str, ...]:
    """Return a caller's names of guards as a tuple; raise UsageError if a name is unknown."""
    if not isinstance(names, Sequence) or isinstance(names, str):
        hint = f", ({names!r},)" if isinstance(names, str) else ""
        raise UsageError(f"require is {names!r}; expected names in a tuple{hint}")
    guard_names = sorted({item.name for item in fields(Capabilities)} - {"backend", "notes"})
    for name in names:
        if name not in guard_names:
            close = get_close_matches(str(name), guard_names, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"no guard is named {name!r}; {hint}known: {', '.join(guard_names)}")
    return tuple(names)
