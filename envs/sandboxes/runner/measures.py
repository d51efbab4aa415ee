"""What a run came to, measured outside of the program: time, memory, how it ended and which limit ended it."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from .cells import Process
from .cgroups import Group
from .orders import DONE
from .output import Pipe

_CLOCK_OF_PROCESS = 2  # the last bits of a process's clock id, after its pid: CPUCLOCK_SCHED


class Meters:
    """Read before a run and after it. `counted` is what the group's counters said last; it is kept by the session."""

    def __init__(self, process: Process, group: Group | None, counted: list[int], cpu_seconds: float) -> None:
        self._process, self._group, self._cpu_seconds = process, group, cpu_seconds
        self._cpu = cpu_of(process.pid)
        self._counted = counted

    def result(
        self, timed_out: bool, out: Pipe, err: Pipe, is_full: Callable[[], bool]
    ) -> tuple[dict[str, Any], bytes | None]:
        """The fields of a Result less its texts, and the value that a console claims."""
        died, reply = self._process.died, self._process.replies[0] if self._process.replies else b""
        code: int | None = None
        number: int | None = None
        value: bytes | None = None
        if died is not None:
            if os.WIFSIGNALED(died["status"]):
                number = os.WTERMSIG(died["status"])
            else:
                code = os.WEXITSTATUS(died["status"])
            cpu, held = float(died["cpu"]), int(died["rss"])
            cpu_total = cpu
            cpu = max(cpu - self._cpu, 0.0)
        else:
            code = reply[1] if reply[:1] == DONE and len(reply) > 2 else 1
            value = reply[3:] if code == 0 and reply[2:3] == b"\1" else None
            cpu_total = cpu_of(self._process.pid)
            cpu, held = max(cpu_total - self._cpu, 0.0), self._process.held()
        before, self._counted[:] = tuple(self._counted), counters(self._group)
        oom = self._counted[0] > before[0] or bool(died and died.get("watched"))
        spent = number == signal.SIGKILL and not oom and cpu_total >= self._cpu_seconds
        reached = {
            "memory": oom,
            "cpu_seconds": spent or number == signal.SIGXCPU,
            "seconds": timed_out,
            "processes": self._counted[1] > before[1],
            "scratch": code != 0 and is_full(),
            "output": out.kept.cut or err.kept.cut,
        }
        return {
            "exit_code": code,
            "signal": number,
            "timed_out": timed_out,
            "oom": oom,
            "limit_hit": next((name for name, hit in reached.items() if hit), ""),
            "stdout_bytes": out.kept.size,
            "stderr_bytes": err.kept.size,
            "state_lost": False,
            "cpu_s": cpu,
            "max_rss_bytes": held,
        }, value


def counters(group: Group | None) -> list[int]:
    """How many processes were killed for memory, and how many forks refused, so far."""
    return [group.oom_kills(), group.pids_hits()] if group is not None else [0, 0]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, 0 where it is gone."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | _CLOCK_OF_PROCESS) if pid else 0.0
    return 0.0
