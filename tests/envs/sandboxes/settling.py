"""Waiting for what comes by itself, and a look at processes: a busy machine may take its time with either.

Deadlines are long, since only a failure waits for one.
"""

import os
import time
from collections.abc import Callable, Iterable

from palaestra.envs.sandboxes.local import LocalSandbox
from palaestra.envs.sandboxes.runner import watching

SECONDS = 60.0


def soon(holds: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it has not come to hold"
        time.sleep(0.01)


def supervisor_of(sandbox: LocalSandbox) -> int:
    """The number of its process."""
    assert sandbox._supervisor is not None
    return sandbox._supervisor._process.pid


def below(pid: int) -> set[int]:
    """Every process that comes of this one, as the kernel tells it."""
    return set(watching.tree(pid)) - {pid}


def alive(pid: int) -> bool:
    """Not gone, and not only waiting to be reaped."""
    return watching.status(pid)[:1] not in watching.ENDED


def known(pids: Iterable[int]) -> set[tuple[int, bytes]]:
    """Those that are alive, with the moment each began, so that a number used again is not taken for it."""
    return {(pid, began) for pid in pids if alive(pid) for began in watching.status(pid)[19:20]}


def live(processes: Iterable[tuple[int, bytes]]) -> bool:
    """Whether any of these is alive still."""
    return not known(pid for pid, _ in processes).isdisjoint(processes)


def reaped(pid: int) -> bool:
    """Whoever looks after it has been told of its end."""
    return not os.path.exists(f"/proc/{pid}")
