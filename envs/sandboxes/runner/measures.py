"""Measures a run from outside the program: its time and memory, how it ended, and which limit ended it."""

import os
import signal
import time
from collections.abc import Callable

from .cells import Cell, CellMessage, Process
from .cgroups import Cgroup
from .output import MARK_BYTES, Outputs
from .watching import cpu_seconds, tree, weigh_as_one
from .wire import LIMITED, RESULT

SHORT_SECONDS = 0.0005
"""A run shorter than this can have used only a few MiB, so the memory of its process is not read again."""
_CLOCK_OF_PROCESS = 2  # the last bits of a process's clock id, after its pid: CPUCLOCK_SCHED


class Meters:
    """The counters of a session, read before a run and after it."""

    def __init__(self, cpu_seconds: float) -> None:
        self._group: Cgroup | None = None
        self._cpu_seconds = cpu_seconds
        self._cpu = 0.0
        self._before = 0.0
        """What the session computed before its allowance began: an earlier user of the group, or what was killed."""
        self._held = 0
        self._kills = self._refusals = 0

    def count_in(self, group: Cgroup | None) -> None:
        """Read the counters of this group from now on, and subtract what they counted for earlier sessions."""
        self._group = group
        if group is not None:
            self._kills, self._refusals = group.oom_kills(), group.pids_hits()
            self._before = group.cpu_seconds() or 0.0

    def over_cpu_limit(self, cell: Cell) -> bool:
        """Return whether the session's processes exceeded their CPU time together; if so, count from zero again."""
        total = self._group.cpu_seconds() if self._group is not None else None
        if total is None:
            pids = tree(cell.first.pid)
            weigh_as_one(pids)
            total = cpu_seconds(pids)
        beyond = total - self._before > self._cpu_seconds
        if beyond:
            self._before = total
        return beyond

    def begin(self, process: Process) -> None:
        self._cpu = cpu_of(process.pid)

    def result(
        self, process: Process, late: bool, lost: bool, duration: float, outputs: Outputs, is_full: Callable[[], bool]
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the packed fields of a Result, and its texts: stdout, stderr and the value that a console reports."""
        code = number = -1
        value: bytes | None = None
        died = process.died
        if died is not None:
            if os.WIFSIGNALED(died["status"]):
                number = os.WTERMSIG(died["status"])
            else:
                code = os.WEXITSTATUS(died["status"])
            cpu, peak, self._held = float(died["cpu"]), int(died["rss"]), 0
        else:
            claim = process.reply[len(process.awaited) :]
            code = claim[0] if len(claim) > 2 else 1
            value = claim[3 : 3 + outputs.cap + MARK_BYTES] if code == 0 and claim[2:3] == b"\1" else None
            cpu = cpu_of(process.pid)
            if duration >= SHORT_SECONDS or not self._held:
                self._held = process.peak_memory()
            peak = self._held
        out, err = outputs.out.capture, outputs.err.capture
        oom, limit = self._limit_hit(died, cpu, number, late, out.cut or err.cut, code != 0 and is_full())
        texts = out.text(), err.text(), value or b""
        sizes = len(texts[0]), len(texts[1]), -1 if value is None else len(value)
        cpu = max(cpu - self._cpu, 0.0)
        head = RESULT.pack(
            code, number, late, oom, lost, LIMITED.index(limit), out.size, err.size, duration, cpu, peak, *sizes
        )
        return head, texts

    def _limit_hit(
        self, died: CellMessage | None, cpu: float, number: int, late: bool, cut: bool, full: bool
    ) -> tuple[bool, str]:
        """Return whether memory ran out, and the most severe limit that ended or cut the run ("" for none)."""
        kills, refusals = self._kills, self._refusals
        if self._group is not None:
            self._kills, self._refusals = self._group.oom_kills(), self._group.pids_hits()
        beyond = str(died.get("beyond", "")) if died else ""
        oom = self._kills > kills or beyond == "memory"
        limit = "memory" if oom else beyond
        if not limit and number >= 0:
            used_up = number == signal.SIGKILL and cpu >= self._cpu_seconds
            limit = "cpu_seconds" if used_up or number == signal.SIGXCPU else ""
        if limit:
            return oom, limit
        if late:
            return oom, "seconds"
        if self._refusals > refusals:
            return oom, "processes"
        return oom, "scratch" if full else "output" if cut else ""


def refusal(size: int) -> bytes:
    """Return the packed fields of a Result for a program that was not run; the reason is `size` bytes of stderr."""
    none = -1
    return RESULT.pack(1, none, False, False, True, 0, 0, size, 0.0, 0.0, 0, 0, size, none)


def is_full(cell: Cell) -> bool:
    """Return whether the scratch folders of a cell are full, in bytes or in files."""
    stats = os.statvfs(cell.folder)
    return stats.f_bavail == 0 or stats.f_favail == 0


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process so far; 0 if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _CLOCK_OF_PROCESS) if pid else 0.0
    except OSError:
        return 0.0
