"""Memory and CPU time of a session's processes, which the supervisor reads and bounds if no control group counts them.

Without a control group the processors are not shared equally either: the more processes a session has, the lower the
supervisor sets their priority.

This bound is weaker than that of a control group. Between two checks a session can hold more than its limit, by at most
`processes` times the address space of one process (which rlimits bound). The memory of shared pages is divided among
the processes that share them (Pss), so a session does not pay for the large zygote from which it was forked. The CPU
time of an ended process is lost if its parent ignores the ends of its children.
"""

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Iterable

_KILL_ROUNDS = 100
_FEW = 8
"""Maximum number of processes with which a session keeps its priority. A lowered priority stays: an ordinary user may
not raise it."""
_STEP, _LEAST = 1.25, 19
"""Constants of the kernel: factor of the CPU weight for each step of niceness, and the last step."""
ENDED: tuple[list[bytes], ...] = ([b"Z"], [b"X"], [])
"""Status fields of a process that has ended: it waits to be reaped, is dead, or does not exist."""


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants; a session's PID 1 stays the ancestor of orphans and daemons."""
    pids, index = [pid], 0
    while index < len(pids):
        pids += _children(pids[index])
        index += 1
    return pids


def watched_memory(pids: Iterable[int]) -> int:
    """Return the bytes that these processes hold together; a process that has ended counts as 0."""
    return sum(map(_held, pids))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of these processes and of the children that they have waited for."""
    return sum(int(ticks) for pid in pids for ticks in status(pid)[11:15]) / os.sysconf("SC_CLK_TCK")


def weigh_as_one(pids: list[int]) -> None:
    """Lower the priority of many processes so that together they get about the CPU time of one."""
    if len(pids) <= _FEW:
        return
    niceness = min(math.ceil(math.log(len(pids), _STEP)), _LEAST)
    for pid in pids:
        with contextlib.suppress(OSError):  # ended, or of another user
            os.setpriority(os.PRIO_PROCESS, pid, niceness)


def status(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # The process has ended.
        return children
    for thread in threads:
        # A thread that has ended meanwhile hides nothing of the others.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            children += map(int, file.read().split())
    return children


def _held(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except PermissionError:
        # It hides: a program may do so. What is of nobody's file can be read of every process, shared or not.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = file.read().split()[:3]
            return (int(resident) - int(shared)) * resource.getpagesize()
    except OSError:
        pass  # gone
    return 0


def end_all_but(spared: set[int]) -> None:
    """Kill all visible processes except `spared`, and new ones that they fork. Only for containers of one session."""
    for _ in range(_KILL_ROUNDS):
        visible = map(int, filter(str.isdigit, os.listdir("/proc")))
        strays = [pid for pid in visible if pid not in spared and status(pid)[:1] not in ENDED]
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not strays:
            return
        time.sleep(0.001)
