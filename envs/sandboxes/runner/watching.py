"""What a session's processes hold, where no control group counts it: the supervisor asks often, and kills.

The weaker promise: between two looks a session can hold more than its limit, by at most `processes` times the address
space of one (which rlimits bound). Shared pages are counted once between those that share them (Pss), so a session that
was forked from a large zygote is not blamed for the zygote.
"""

import os
import resource
from collections.abc import Iterable


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
