"""One event loop on a thread of its own, for the async tools of a runner: jobs go in and come out in batches.

Its lag is measured: how long each of its rounds took, for every other call waits until a round is over. Measuring costs
two looks at the clock a round, so that a tool that holds the loop (a blocking call in an `async def`) shows however
briefly it does; one that holds it long is warned about by name. Left out: deadlines (`envs.running.inbox`).
"""

import asyncio
import contextlib
import logging
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.envs.core.calls import failed, run_async
from palaestra.envs.running.inbox import Inbox, Job, leave_line
from palaestra.episode import Call

log = logging.getLogger("palaestra.envs")
HELD_SECONDS = 0.2
"""A tool that holds the loop longer is warned about."""
BLOCKED_SECONDS = 1.0
"""A loop that has not moved for so long when a call is late is given up, whoever holds it."""
STARVED = 0.15
"""Where the thread that looks got its turns late for such a share of the time, the loop's thread probably did too."""
_LOOK = 0.1
_IDLE = 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How long the loop was busy without a look at what else there is, in seconds, over `samples` rounds."""

    max: float = 0.0
    mean: float = 0.0
    samples: int = 0


class _Rounds(selectors.DefaultSelector):
    """The selector of a loop, which is asked once a round: it knows how long the rounds take."""

    def __init__(self) -> None:
        super().__init__()
        self.busy_since = float("inf")
        """When the round began that runs; infinite while the loop waits."""
        self.longest = self.total = 0.0
        self.count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Between two calls lies a round."""
        if self.busy_since != float("inf"):
            seconds = time.monotonic() - self.busy_since
            self.longest = max(self.longest, seconds)
            self.total += seconds
            self.count += 1
        self.busy_since = float("inf")
        found = super().select(timeout)
        self.busy_since = time.monotonic()
        return found


class LoopThread:
    """A running event loop. Everything but `submit`, `cancel`, `blocked` and `stop` happens on its thread."""

    def __init__(self) -> None:
        self._rounds = _Rounds()
        self.loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop(self._rounds)
        self._jobs: deque[Job] = deque()
        self._woken = False
        self._out: dict[Inbox, list[Job]] = {}
        self._alive = 0
        self._retired = False
        self._work = threading.Event()
        self._warned: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run_loop, name="palaestra-loop", daemon=True)
        self._thread.start()
        self._clock = time.pthread_getcpuclockid(self._thread.ident or 0)
        threading.Thread(target=self._watch, name="palaestra-loop-watch", daemon=True).start()

    @property
    def lag(self) -> Lag:
        """What was measured so far."""
        rounds = self._rounds
        return Lag(rounds.longest, rounds.total / max(rounds.count, 1), rounds.count)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Run async tools. One wake-up for all of them."""
        self._jobs.extend(jobs)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._take_in)

    @staticmethod
    def cancel(job: Job) -> None:
        """Stop a job that was given up, on its own loop, which may have been replaced since."""
        if job.task is not None:
            with contextlib.suppress(RuntimeError):  # That loop has ended, and its tasks with it.
                job.task.get_loop().call_soon_threadsafe(job.task.cancel)

    def blocked(self) -> str:
        """What holds the loop that has not moved for long, or "" while it moves."""
        still = time.monotonic() - self._rounds.busy_since
        if still < HELD_SECONDS:
            return ""
        holder = self._holder()
        if holder is None and still < BLOCKED_SECONDS:  # Perhaps it only waits for a processor.
            return ""
        return f"{_name(holder) if holder else 'something'} for {still:.1f} s"

    @property
    def runs(self) -> bool:
        """False once its thread has ended."""
        return self._thread.is_alive()

    def retire(self) -> None:
        """Take no further jobs; those that are here are served, should the loop ever move again, and then it ends."""
        self._retired = True
        self.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._retired and not self._alive and not self._jobs:
            self.loop.call_soon(self.loop.stop)  # Behind the delivery of what has just been completed.

    def stop(self) -> None:
        """End the loop; what still runs on it is cancelled."""
        with contextlib.suppress(RuntimeError):  # It has ended.
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _take_in(self) -> None:
        self._woken = False
        while self._jobs:
            job = self._jobs.popleft()
            if not job.over:
                self._alive += 1
                job.task = asyncio.Task(self._serve(job), loop=self.loop, name=job.prepared.name)
        self._work.set()

    async def _serve(self, job: Job) -> None:
        try:
            call = await run_async(job.prepared, job.until)
        except BaseException as error:  # Whatever it is, it must not end the loop that the others need.
            if not job.over:  # A tool may cancel itself; one given up is over already.
                self._settle(job, failed(job.prepared, error))
            if isinstance(error, asyncio.CancelledError | GeneratorExit):
                raise
            return
        finally:
            self._alive -= 1
            self._leave()
        self._settle(job, call)

    def _settle(self, job: Job, call: Call) -> None:
        if not self._out:
            self.loop.call_soon(self._deliver)
        job.call = call
        self._out.setdefault(job.turn.inbox, []).append(job)
        leave_line(job)

    def _deliver(self) -> None:
        """Hand over all that was completed in this round of the loop at once: each hand-over wakes a thread."""
        out, self._out = self._out, {}
        for inbox, jobs in out.items():
            inbox.settle(jobs)

    def _watch(self) -> None:
        """A thread: while there is work, look whether the loop moves, and what holds it where it does not."""
        seen = late = worked = 0.0
        """The loop's round by its beginning, how late our looks came in it, its thread's processor time before it."""
        while not self.loop.is_closed():
            if not self._alive:
                self._work.clear()
                self._work.wait(_IDLE)
            looked, worked_before = time.monotonic(), self._worked()
            time.sleep(_LOOK)
            now, busy_since = time.monotonic(), self._rounds.busy_since
            if busy_since != seen:
                seen, late, worked = busy_since, 0.0, worked_before
            late += now - looked - _LOOK
            still = now - busy_since
            if _held(still, late, self._worked() - worked) and (job := self._holder()) is not None:
                key = (job.turn.inbox.env_id, job.prepared.name)
                if key not in self._warned:
                    self._warned.add(key)
                    log.warning(
                        "%s has held the event loop for %.2f s, and every other async call with it; await what waits "
                        "there, or hand it to asyncio.to_thread (said once)", _name(job), still,
                    )  # fmt: skip

    def _worked(self) -> float:
        """Seconds of a processor that the loop's thread has had."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # The thread has ended.
            return 0.0

    def _holder(self) -> Job | None:
        """The job whose code the loop's thread is in. Looked up in its frames: nothing is spent where all is well."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            if frame.f_code is _SERVE:
                found: Job = frame.f_locals["job"]
                return found
            frame = frame.f_back
        return None

    def _run_loop(self) -> None:
        """The thread: runs until stopped, then cancels what is left and closes."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._retired = False  # It ends now: the last of its calls must not stop it once more.
            left: set[asyncio.Task[Any]] = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self.loop.close()


_SERVE = LoopThread._serve.__code__


def _held(still: float, late: float, worked: float) -> bool:
    """Whether a round of `still` seconds is its tool's doing: it computed itself, or could have gone on at any time."""
    return still > HELD_SECONDS and (worked > still / 2 or late < STARVED * still)


def _name(job: Job) -> str:
    return f"{job.turn.inbox.env_id or 'an environment'} slot {job.turn.slot}: tool {job.prepared.name}"
