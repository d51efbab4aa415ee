"""What a sandbox truly enforces on this machine, found by trying and never by assuming."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

from palaestra.errors import SandboxUnavailable, UsageError


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One line a guard. False means: absent here, do not count on it."""

    backend: str
    files: bool = False
    """Programs see a file system of their own; the host's files are neither readable nor writable."""
    network: bool = False
    """No socket reaches anything, loopback included."""
    processes: bool = False
    """Programs see and signal only their own processes."""
    process_count: bool = False
    """The number of processes of a session is bounded, and one session's cannot starve another's."""
    memory: Literal["tree", "watched", "process", ""] = ""
    """How it is bounded: the kernel counts the whole tree; the supervisor watches and kills; each process alone."""
    syscalls: bool = False
    """Dangerous system calls are refused (seccomp)."""
    landlock: int = 0
    """Landlock's version as a second wall around files, 0 where it is not used."""
    own_user: bool = False
    """Programs run as a user that is not ours."""
    forks: bool = False
    """A live session can be forked."""
    notes: tuple[str, ...] = field(default=())
    """One sentence for each guard that is absent or weaker: what is missing, why, what would bring it."""

    def require(self, *names: str) -> None:
        """Raise unless every named guard is there; `memory` asks for a bound on the whole tree."""
        missing = [
            name
            for name in guards_of(names)
            if not getattr(self, name) or (name == "memory" and self.memory == "process")
        ]
        if missing:
            raise SandboxUnavailable(self.backend, f"not enforced here: {', '.join(missing)}", self.notes)


def guards_of(names: Any) -> tuple[str, ...]:
    """Names of guards, as a caller gives them."""
    if not isinstance(names, Sequence) or isinstance(names, str):
        hint = f", ({names!r},)" if isinstance(names, str) else ""
        raise UsageError(f"require is {names!r}; expected names in a tuple{hint}")
    known = sorted({item.name for item in fields(Capabilities)} - {"backend", "notes"})
    for name in names:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"no guard is named {name!r}; {hint}known: {', '.join(known)}")
    return tuple(names)
