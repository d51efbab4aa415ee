"""Completion queue of one caller: it collects complete Pendings, and ends jobs that exceed their deadline.

Every running job has two timers: the first gives a warning that names the slow job, the second is its deadline. Jobs
with the same timeout expire in the order in which they began, so each timeout needs one queue, and only its first job
is looked at. Left out: running jobs (`runner`), and what follows from a late one (its maker decides).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from palaestra.envs.running.work import Pending, Work, format_arguments

log = logging.getLogger("palaestra.envs")
STALL_SHARE = 0.5
"""Share of its timeout after which a job is reported as stalled."""
_MIN_LINE = 256


@dataclass(frozen=True, slots=True)
class Stall:
    """A tool call, or another job, that has run or waited for long."""

    env_id: str
    slot: int
    tool: str
    arguments: Mapping[str, Any]
    seconds: float
    """Seconds since it began, or since it was requested if it still waits."""
    timeout: float
    waits: str = ""
    """Name of what it waits for if it has not begun (a thread, or its limit); else ""."""

    def __str__(self) -> str:
        what = f"has waited {self.seconds:.1f} s for {self.waits}" if self.waits else f"has run {self.seconds:.1f} s"
        call = f"{self.tool}({format_arguments(self.arguments)})"
        return f"{self.env_id} slot {self.slot}: {call} {what} of the {self.timeout:g} s it may"


class Inbox:
    """Pendings of one caller: of one environment, or of all slots of an arena."""

    def __init__(self, env_id: str = "") -> None:
        self.env_id = env_id
        self._lock = threading.Lock()
        self._done: list[Pending] = []
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._wanted = 0
        """Number of complete Pendings at which the waiting thread is woken; 0 while none waits."""
        self._sleeps_until = 0.0
        self._ticking = 0
        self._fresh: dict[float, deque[Work]] = {}
        self._slow: dict[float, deque[Work]] = {}
        """Running jobs by their timeout, before and after the first timer: in each queue the first to begin is the
        first to expire."""

    def stall(self, work: Work) -> Stall:
        """Return how long a job has run or waited, and what it waits for."""
        waits = "" if work.started_at is not None else "a thread"
        if not work.admitted and work.started_at is None and work.conditions.limit is not None:
            waits = "its limit"
        seconds = time.monotonic() - (work.requested_at if work.started_at is None else work.started_at)
        return Stall(self.env_id, work.pending.slot, work.label, work.arguments, seconds, work.patience, waits)

    def begin(self, works: Sequence[Work]) -> None:
        """Start the timers of these jobs."""
        first = float("inf")
        with self._lock:
            now = time.monotonic()
            for work in works:
                if work.over:
                    continue
                work.started_at = now
                self._ticking += 1
                seconds = work.patience
                line = self._fresh.get(seconds)
                if line is None:
                    line = self._fresh[seconds] = deque()
                elif len(line) > max(2 * self._ticking, _MIN_LINE):  # Behind a long job, many may be over.
                    line = self._fresh[seconds] = deque(queued for queued in line if not queued.over)
                line.append(work)
                first = min(first, now + STALL_SHARE * seconds)
            wake = first < self._sleeps_until
        if wake:
            self._bell.put(None)

    def settle(self, works: Iterable[Work]) -> None:
        """Mark these jobs as finished. Wake the waiting thread only if enough Pendings are complete, because a wake-up
        costs as much as a call."""
        with self._lock:
            for work in works:
                if not work.over:
                    self._stop(work)
                    self._count(work.pending)
            wake = 0 < self._wanted <= len(self._done)
            if wake:
                self._wanted = 0
        if wake:
            self._bell.put(None)

    def give_up(self, pending: Pending) -> list[Work]:
        """Stop waiting for this Pending, and return its jobs that were still running."""
        with self._lock:
            out = [work for work in pending.works if not work.over]
            for work in out:
                self._stop(work)
        return out

    def wait(self, until: float | None, count: int = 1) -> list[Pending]:
        """Wait until `count` Pendings are complete, at most until the time `until` (None: no limit); return all
        complete ones."""
        while True:
            now = time.monotonic()
            with self._lock:
                late, ring, stalled = self._look(now)
                for work in late:
                    work.late = True
                    self._stop(work)
                    self._count(work.pending)
                enough = len(self._done) >= count or (until is not None and until <= now)
                done: list[Pending] = []
                if enough:
                    done, self._done = self._done, done
                else:
                    self._wanted, self._sleeps_until = count, ring if until is None else min(ring, until)
            for work in stalled:
                log.warning("%s", self.stall(work))
            for work in late:
                work.pending.runner.abandon(work)
            if enough:
                for pending in done:  # Break reference cycles: the garbage collector would pause all threads.
                    for work in pending.works:
                        if not work.late:
                            del work.pending
                return done
            self._sleep()

    def _sleep(self) -> None:
        """Sleep until another thread wakes this one or the next timer is due; then note that no thread waits."""
        pause = self._sleeps_until - time.monotonic()
        try:
            self._bell.get(timeout=None if pause == float("inf") else max(pause, 0.0))
        except Empty:
            pass
        finally:
            self._wanted, self._sleeps_until = 0, 0.0

    def _look(self, now: float) -> tuple[list[Work], float, list[Work]]:
        """Return the jobs that are late, the time of the next timer, and the jobs that have just become slow."""
        late: list[Work] = []
        ring, stalled = float("inf"), []
        for seconds, line in self._fresh.items():
            while line and (line[0].over or line[0].rings(STALL_SHARE) <= now):
                work = line.popleft()
                if not work.over:
                    stalled.append(work)
                    self._slow.setdefault(seconds, deque()).append(work)
            if line:
                ring = min(ring, line[0].rings(STALL_SHARE))
        for line in self._slow.values():
            while line and (line[0].over or line[0].rings(1.0) <= now):
                work = line.popleft()
                if not work.over:
                    late.append(work)
            if line:
                ring = min(ring, line[0].rings(1.0))
        return late, ring, stalled

    def _stop(self, work: Work) -> None:
        work.over = True
        if work.started_at is not None:
            self._ticking -= 1

    def _count(self, pending: Pending) -> None:
        pending.left -= 1
        if not pending.left:
            self._done.append(pending)


def leave_line(work: Work) -> None:
    """Free the place of a finished job in its limit, and start the next job in that limit's queue, of any caller."""
    limit = work.conditions.limit
    following: Work | None = limit.leave(work) if limit is not None else None
    if following is not None:
        following.pending.runner.launch(following)
