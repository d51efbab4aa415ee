"""Where a caller waits for the calls it has set going: finished turns come in, and late calls are found.

Every running call has a clock. It rings twice: first for a warning that names the slow call, then for its deadline.
Calls with the same time-out ring in the order in which they began, so a line for each time-out is all that has to be
kept, and only the heads are looked at. Left out: where calls run (`envs.running.runner`), and what a late one means for
its episode (`env`, `vector`).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from palaestra.envs.core.calls import Prepared
from palaestra.envs.core.tool import Mode
from palaestra.episode import Call

log = logging.getLogger("palaestra.envs")
STALL_SHARE = 0.5
"""Share of its deadline after which a call is said to stall."""
KILL_SECONDS = 5.0
"""How long after its time-out a process tool may take to be killed."""
_MIN_LINE = 256
_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Stall:
    """A call that takes long."""

    env_id: str
    slot: int
    tool: str
    arguments: Mapping[str, Any]
    seconds: float
    """Since it began, or since it was asked for where it still waits."""
    timeout: float
    waits: str = ""
    """What it waits for, where it has not begun: a thread, or its tool's limit."""

    def __str__(self) -> str:
        what = f"has waited {self.seconds:.1f} s for {self.waits}" if self.waits else f"has run {self.seconds:.1f} s"
        call = f"{self.tool}({shown(self.arguments)})"
        return f"{self.env_id} slot {self.slot}: {call} {what} of the {self.timeout:g} s it may"


class Job:
    """One call in flight. Its state is guarded by its inbox."""

    __slots__ = ("admitted", "asked", "begun", "call", "child", "mode", "over", "prepared", "seconds", "task", "turn")

    def __init__(self, turn: "Turn", prepared: Prepared, asked: float) -> None:
        self.turn = turn
        self.prepared = prepared
        self.call: Call | None = None
        """What came of it."""
        self.mode = prepared.mode
        self.seconds = 0.0 if prepared.tool is None else prepared.tool.timeout
        if self.mode is Mode.PROCESS:  # Its thread kills it in time; ours is the second look.
            self.seconds += KILL_SECONDS
        self.asked = asked
        self.begun: float | None = None
        self.over = False
        """It has its result, or nobody wants one any more."""
        self.admitted = False
        """It counts against its tool's limit."""
        self.task: Any = None
        self.child: Any = None
        """The process that works on it."""

    @property
    def until(self) -> float:
        """Its deadline."""
        return self.rings(1.0)

    def rings(self, share: float) -> float:
        """When so much of its time has passed."""
        return float("inf") if self.begun is None else self.begun + share * self.seconds

    def stall(self) -> Stall:
        """What to say of it now."""
        tool = self.prepared.tool
        waits = "" if self.begun is not None else "a thread"
        if not self.admitted and self.begun is None and tool is not None and tool.limit is not None:
            waits = "its limit"
        since = self.asked if self.begun is None else self.begun
        name, arguments = self.prepared.name, self.prepared.arguments
        seconds = time.monotonic() - since
        return Stall(self.turn.inbox.env_id, self.turn.slot, name, arguments, seconds, self.seconds, waits)


class Turn:
    """The calls of one turn, in flight."""

    __slots__ = ("calls", "errand", "inbox", "jobs", "left", "runner", "slot")

    def __init__(self, slot: int, prepared: Sequence[Prepared], inbox: "Inbox", errand: Any = None) -> None:
        self.slot = slot
        self.inbox = inbox
        self.errand = errand
        """What they are made for, where that is not the agent's turn: a matter of who waits for them."""
        self.calls: list[Call] = []
        """The calls in call order, once all are in."""
        self.left = len(prepared)
        now = time.monotonic()
        self.jobs = [Job(self, item, now) for item in prepared]
        self.runner: Any = None
        """Who runs it."""


class Inbox:
    """The turns of one environment, or of all slots of a vector environment."""

    def __init__(self, env_id: str = "") -> None:
        self.env_id = env_id
        self._lock = threading.Lock()
        self._done: list[Turn] = []
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._wanted = 0
        """Complete turns for which the one who waits is to be woken; 0 while nobody waits."""
        self._sleeps_until = 0.0
        self._ticking = 0
        self._fresh: dict[float, deque[Job]] = {}
        self._slow: dict[float, deque[Job]] = {}
        """Jobs whose clocks run, before and after the first ring, by their time-out: in each line the first to begin
        is the first to ring."""

    def begin(self, jobs: Sequence[Job]) -> None:
        """The clocks of these jobs start."""
        first = float("inf")
        with self._lock:
            now = time.monotonic()
            for job in jobs:
                if job.over:
                    continue
                job.begun = now
                self._ticking += 1
                line = self._fresh.get(job.seconds)
                if line is None:
                    line = self._fresh[job.seconds] = deque()
                elif len(line) > max(2 * self._ticking, _MIN_LINE):  # Behind one that lasts, many may be over.
                    line = self._fresh[job.seconds] = deque(one for one in line if not one.over)
                line.append(job)
                first = min(first, now + STALL_SHARE * job.seconds)
            wake = first < self._sleeps_until
        if wake:
            self._bell.put(None)

    def settle(self, jobs: Iterable[Job]) -> None:
        """These jobs have their calls. Who waits is woken where enough turns are now complete: once, since it costs as
        much as a call."""
        with self._lock:
            for job in jobs:
                if job.over:
                    continue
                self._stop(job)
                turn = job.turn
                turn.left -= 1
                if not turn.left:
                    turn.calls = [one.call for one in turn.jobs if one.call is not None]
                    turn.jobs.clear()  # They know their turn: a circle would be left to the garbage collector.
                    self._done.append(turn)
            wake = 0 < self._wanted <= len(self._done)
            if wake:
                self._wanted = 0
        if wake:
            self._bell.put(None)

    def give_up(self, turn: Turn) -> list[Job]:
        """Nobody waits for this turn any more; its jobs that were still out."""
        with self._lock:
            out = [job for job in turn.jobs if not job.over]
            for job in out:
                self._stop(job)
        return out

    def wait(self, until: float | None, count: int = 1) -> tuple[list[Turn], Job | None]:
        """Complete turns, at least `count` of them, or one late job; what there is where `until` came first."""
        while True:
            now = time.monotonic()
            with self._lock:
                late, ring, stalled = self._look(now)
                enough = len(self._done) >= count or (until is not None and until <= now)
                done: list[Turn] = []
                if late is None and enough:
                    done, self._done = self._done, done
                elif late is None:
                    self._wanted, self._sleeps_until = count, ring if until is None else min(ring, until)
            for job in stalled:
                log.warning("%s", job.stall())
            if late is not None or enough:
                return done, late
            self._sleep()

    def _sleep(self) -> None:
        """Until the bell rings, or a clock, or nobody waits any longer."""
        pause = self._sleeps_until - time.monotonic()
        try:
            self._bell.get(timeout=None if pause == float("inf") else max(pause, 0.0))
        except Empty:
            pass
        finally:
            self._wanted, self._sleeps_until = 0, 0.0

    def _look(self, now: float) -> tuple[Job | None, float, list[Job]]:
        """A late job, when the next clock rings, and the jobs that have become slow."""
        late, ring, stalled = None, float("inf"), []
        for seconds, line in self._fresh.items():
            while line and (line[0].over or line[0].rings(STALL_SHARE) <= now):
                job = line.popleft()
                if not job.over:
                    stalled.append(job)
                    self._slow.setdefault(seconds, deque()).append(job)
            if line:
                ring = min(ring, line[0].rings(STALL_SHARE))
        for line in self._slow.values():
            while line and line[0].over:
                line.popleft()
            if line:
                ring = min(ring, line[0].until)
                late = line[0] if line[0].until <= now else late
        return late, ring, stalled

    def _stop(self, job: Job) -> None:
        job.over = True
        if job.begun is not None:
            self._ticking -= 1


def leave_line(job: Job) -> None:
    """A job is over: the next in its tool's line goes in, whichever environment it belongs to."""
    limit = job.prepared.limit
    following: Job | None = limit.leave(job) if limit is not None else None
    if following is not None:
        following.turn.runner.launch(following)


def shown(arguments: Mapping[str, Any]) -> str:
    """Arguments in a few words."""
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
