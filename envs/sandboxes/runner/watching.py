"""What a session's processes hold and compute, where no control group counts it: the supervisor asks, and kills.

The weaker promise: between two looks a session can hold more than its limit, by at most `processes` times the address
space of one (which rlimits bound). Shared pages are counted once between those that share them (Pss), so a session that
was forked from a large zygote is not blamed for the zygote. What a process computed is lost where its parent ignores
the ends of its children.
"""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterable

_KILL_ROUNDS = 100


def tree(pid: int) -> list[int]:
    """A process and all that descend from it; a session's PID 1 stays the ancestor of orphans and daemons."""
    found, index = [pid], 0
    while index < len(found):
        found += _children(found[index])
        index += 1
    return found


def watched_memory(pids: Iterable[int]) -> int:
    """Bytes these processes hold together; one that has gone counts as nothing."""
    return sum(_held(pid) for pid in pids)


def cpu_seconds(pids: Iterable[int]) -> float:
    """What these processes computed, and those that they have waited for: of a tree, all that has not been disowned."""
    return sum(_computed(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def _computed(pid: int) -> int:
    """Ticks of a process and of the children that it has waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return sum(map(int, file.read().rpartition(b") ")[2].split()[11:15]))
    except OSError:
        return 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        pass  # it died while it was looked at
    return found


def _held(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except PermissionError:
        return _held_at_most(pid)  # it hides: a program may do so
    except OSError:
        pass  # gone
    return 0


def _held_at_most(pid: int) -> int:
    """What it shares with nobody's file, shared with other processes or not: this can be read of every process."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = file.read().split()[:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


def end_all_but(spared: set[int]) -> None:
    """Kill all else that can be seen, and what it forks meanwhile: a container serves one session at a time."""
    for _ in range(_KILL_ROUNDS):
        strays = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid not in spared]
        strays = [pid for pid in strays if not _zombie(pid)]
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not strays:
            return
        time.sleep(0.001)


def _zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return True
