"""What a run came to, measured outside of the program: time, memory, how it ended and which limit ended it."""

import os
import signal
import time
from collections.abc import Callable

from .cells import Message, Process
from .cgroups import Group
from .output import Kept

SHORT_SECONDS = 0.0005
"""A run that took less could have touched a few MiB: how much the process held is not read anew."""
_CLOCK_OF_PROCESS = 2  # the last bits of a process's clock id, after its pid: CPUCLOCK_SCHED


class Meters:
    """A session's meters, read before a run and after it."""

    def __init__(self, cpu_seconds: float) -> None:
        self.group: Group | None = None
        self._cpu_seconds = cpu_seconds
        self._cpu = 0.0
        self._held = 0
        self._kills = self._refusals = 0

    def begin(self, process: Process) -> None:
        self._cpu = cpu_of(process.pid)

    def result(
        self, process: Process, timed_out: bool, duration: float, kept: tuple[Kept, Kept], is_full: Callable[[], bool]
    ) -> tuple[Message, bytes | None]:
        """The fields of a Result less its texts, and the value that a console claims."""
        code: int | None = None
        number: int | None = None
        value: bytes | None = None
        died = process.died
        if died is not None:
            if os.WIFSIGNALED(died["status"]):
                number = os.WTERMSIG(died["status"])
            else:
                code = os.WEXITSTATUS(died["status"])
            cpu, held, self._held = float(died["cpu"]), int(died["rss"]), 0
        else:
            claim = process.reply[len(process.awaited) :]
            code = claim[0] if len(claim) > 2 else 1
            value = claim[3:] if code == 0 and claim[2:3] == b"\1" else None
            cpu = cpu_of(process.pid)
            if duration >= SHORT_SECONDS or not self._held:
                self._held = process.held()
            held = self._held
        out, err = kept
        return {
            "exit_code": code,
            "signal": number,
            "timed_out": timed_out,
            **self._limits_hit(died, cpu, number, timed_out, out.cut or err.cut, code != 0 and is_full()),
            "stdout_bytes": out.size,
            "stderr_bytes": err.size,
            "state_lost": False,
            "duration_s": duration,
            "cpu_s": max(cpu - self._cpu, 0.0),
            "max_rss_bytes": held,
        }, value

    def _limits_hit(
        self, died: Message | None, cpu: float, number: int | None, late: bool, cut: bool, full: bool
    ) -> Message:
        """The limit that ended or cut the run, the gravest where there were several."""
        kills, refusals = self._kills, self._refusals
        if self.group is not None:
            self._kills, self._refusals = self.group.oom_kills(), self.group.pids_hits()
        oom = self._kills > kills or bool(died and died.get("watched"))
        limit = "memory" if oom else ""
        if not limit and number is not None:
            spent = number == signal.SIGKILL and cpu >= self._cpu_seconds
            limit = "cpu_seconds" if spent or number == signal.SIGXCPU else ""
        if not limit:
            refused = self._refusals > refusals
            reached = (late, "seconds"), (refused, "processes"), (full, "scratch"), (cut, "output")
            limit = next((name for hit, name in reached if hit), "")
        return {"oom": oom, "limit_hit": limit}


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, 0 where it is gone."""
    try:
        return time.clock_gettime(~pid << 3 | _CLOCK_OF_PROCESS) if pid else 0.0
    except OSError:
        return 0.0
