"""One event loop on its own thread, for the async jobs of a runner: they go in and come out many at a time.

Its lag is measured: the duration of each of its rounds, since every other call waits until a round is over. Measuring
costs two reads of the clock for each round, so that even a short block of the loop (a blocking call in an `async def`)
is seen; a tool that blocks it for long is named in a warning. Left out: deadlines (`envs.running.inbox`).
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

from palaestra.envs.running.inbox import Inbox, leave_line
from palaestra.envs.running.work import Work

log = logging.getLogger("palaestra.envs")
HELD_SECONDS = 0.2
"""Seconds after which a tool that blocks the loop is named in a warning."""
BLOCKED_SECONDS = 1.0
"""Seconds after which a loop that does not move while a call is late is replaced, whatever blocks it."""
STARVED = 0.15
"""If the watching thread was late by this share of the time, the loop's thread probably had no processor either."""
_LOOK = 0.1
_IDLE = 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """Durations in seconds of the loop's rounds, `samples` of them: the time for which other calls had to wait."""

    max: float = 0.0
    mean: float = 0.0
    samples: int = 0


class _Rounds(selectors.DefaultSelector):
    """Selector of a loop, which is called once a round: it measures how long the rounds take."""

    def __init__(self) -> None:
        super().__init__()
        self.busy_since = float("inf")
        """Start of the running round on the monotonic clock; infinite while the loop waits."""
        self.longest = self.total = 0.0
        self.count = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events; the time between two calls is a round."""
        if self.busy_since != float("inf"):
            seconds = time.monotonic() - self.busy_since
            self.longest = max(self.longest, seconds)
            self.total += seconds
            self.count += 1
        self.busy_since = float("inf")
        ready = super().select(timeout)
        self.busy_since = time.monotonic()
        return ready


class LoopThread:
    """A running event loop. All but `submit`, `cancel`, `blocked` and `stop` runs on its thread."""

    def __init__(self) -> None:
        self._rounds = _Rounds()
        self.loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop(self._rounds)
        self._works: deque[Work] = deque()
        self._woken = False
        self._out: dict[Inbox, list[Work]] = {}
        self._alive = 0
        self._retired = False
        self._busy = threading.Event()
        self._warned: set[tuple[str, str]] = set()
        self._thread = threading.Thread(target=self._run_loop, name="palaestra-loop", daemon=True)
        self._thread.start()
        self._clock = time.pthread_getcpuclockid(self._thread.ident or 0)
        threading.Thread(target=self._watch, name="palaestra-loop-watch", daemon=True).start()

    @property
    def lag(self) -> Lag:
        """Lag measured so far."""
        rounds = self._rounds
        return Lag(rounds.longest, rounds.total / max(rounds.count, 1), rounds.count)

    def submit(self, works: Sequence[Work]) -> None:
        """Run these jobs, with one wake-up for all of them."""
        self._works.extend(works)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._take_in)

    @staticmethod
    def cancel(work: Work) -> None:
        """Cancel a job that was dropped, on the loop that runs it, which may have been replaced since."""
        if work.task is not None:
            with contextlib.suppress(RuntimeError):  # That loop has ended with its tasks.
                work.task.get_loop().call_soon_threadsafe(work.task.cancel)

    def blocked(self) -> str:
        """Return what blocks the loop if it has not moved for long, or "" while it moves."""
        still = time.monotonic() - self._rounds.busy_since
        if still < HELD_SECONDS:
            return ""
        holder = self._holder()
        if holder is None and still < BLOCKED_SECONDS:  # It may only be waiting for a processor.
            return ""
        return f"{_name(holder) if holder else 'something'} for {still:.1f} s"

    @property
    def runs(self) -> bool:
        """True until its thread has ended."""
        return self._thread.is_alive()

    def retire(self) -> None:
        """Accept no further jobs; those that it has are still served if the loop ever moves again, then it ends."""
        self._retired = True
        self.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._retired and not self._alive and not self._works:
            self.loop.call_soon(self.loop.stop)  # After the delivery of what has just been completed.

    def stop(self) -> None:
        """End the loop; jobs that still run on it are cancelled."""
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _take_in(self) -> None:
        self._woken = False
        while self._works:
            work = self._works.popleft()
            if not work.over:
                self._alive += 1
                work.task = asyncio.Task(self._serve(work), loop=self.loop, name=work.label)
        self._busy.set()

    async def _serve(self, work: Work) -> None:
        try:
            await work.perform_async()
        except BaseException as error:  # No error may end the loop that other jobs need.
            if not work.over:  # A job may cancel itself; a dropped one is over already.
                work.error = error
                self._settle(work)
            if isinstance(error, asyncio.CancelledError | GeneratorExit):
                raise
            return
        finally:
            self._alive -= 1
            self._leave()
        self._settle(work)

    def _settle(self, work: Work) -> None:
        if not self._out:
            self.loop.call_soon(self._deliver)
        self._out.setdefault(work.pending.inbox, []).append(work)
        leave_line(work)

    def _deliver(self) -> None:
        """Deliver all that was completed in this round of the loop at once: each delivery wakes a thread."""
        out, self._out = self._out, {}
        for inbox, works in out.items():
            inbox.settle(works)

    def _watch(self) -> None:
        """Watch the loop in a thread: while there are jobs, check that it moves, and warn of what blocks it."""
        round_start = late = worked = 0.0
        """Start of the loop's round, lateness of the checks in it, and processor time of its thread before it."""
        while not self.loop.is_closed():
            if not self._alive:
                self._busy.clear()
                self._busy.wait(_IDLE)
            looked, worked_before = time.monotonic(), self._worked()
            time.sleep(_LOOK)
            now, busy_since = time.monotonic(), self._rounds.busy_since
            if busy_since != round_start:
                round_start, late, worked = busy_since, 0.0, worked_before
            late += now - looked - _LOOK
            still = now - busy_since
            if _held(still, late, self._worked() - worked) and (work := self._holder()) is not None:
                key = (work.pending.inbox.env_id, work.label)
                if key not in self._warned:
                    self._warned.add(key)
                    log.warning(
                        "%s has held the event loop for %.2f s, and every other async call with it; await what waits "
                        "there, or hand it to asyncio.to_thread (said once)", _name(work), still,
                    )  # fmt: skip

    def _worked(self) -> float:
        """Return the processor time of the loop's thread, in seconds."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # The thread has ended.
            return 0.0

    def _holder(self) -> Work | None:
        """Return the job whose code the loop's thread runs, from its frames; this costs nothing in normal rounds."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            if frame.f_code is _SERVE:
                work: Work = frame.f_locals["work"]
                return work
            frame = frame.f_back
        return None

    def _run_loop(self) -> None:
        """Run the loop in its thread until stopped, then cancel what is left and close."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._retired = False  # The loop ends now: its last call must not stop it again.
            left: set[asyncio.Task[Any]] = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self.loop.close()


_SERVE = LoopThread._serve.__code__


def _held(still: float, late: float, worked: float) -> bool:
    """Return whether a job blocks a round of `still` seconds: it computed itself, or its thread could have run."""
    return still > HELD_SECONDS and (worked > still / 2 or late < STARVED * still)


def _name(work: Work) -> str:
    return f"{work.pending.inbox.env_id or 'an environment'} slot {work.pending.slot}: {work.label}"
