"""One event loop on a thread of its own, for the async works of a runner: they go in and come out many at a time.

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

from palaestra.envs.running.inbox import Inbox, leave_line
from palaestra.envs.running.work import Work

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
        """What was measured so far."""
        rounds = self._rounds
        return Lag(rounds.longest, rounds.total / max(rounds.count, 1), rounds.count)

    def submit(self, works: Sequence[Work]) -> None:
        """Run these works. One wake-up for all of them."""
        self._works.extend(works)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._take_in)

    @staticmethod
    def cancel(work: Work) -> None:
        """Stop a work that was given up, on its own loop, which may have been replaced since."""
        if work.task is not None:
            with contextlib.suppress(RuntimeError):  # That loop has ended, and its tasks with it.
                work.task.get_loop().call_soon_threadsafe(work.task.cancel)

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
        """Take no further works; those that are here are served, should the loop ever move again, and then it ends."""
        self._retired = True
        self.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._retired and not self._alive and not self._works:
            self.loop.call_soon(self.loop.stop)  # Behind the delivery of what has just been completed.

    def stop(self) -> None:
        """End the loop; what still runs on it is cancelled."""
        with contextlib.suppress(RuntimeError):  # It has ended.
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
        except BaseException as error:  # Whatever it is, it must not end the loop that the others need.
            if not work.over:  # A work may cancel itself; one given up is over already.
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
        """Hand over all that was completed in this round of the loop at once: each hand-over wakes a thread."""
        out, self._out = self._out, {}
        for inbox, works in out.items():
            inbox.settle(works)

    def _watch(self) -> None:
        """A thread: while there is work, look whether the loop moves, and what holds it where it does not."""
        seen = late = worked = 0.0
        """The loop's round by its beginning, how late our looks came in it, its thread's processor time before it."""
        while not self.loop.is_closed():
            if not self._alive:
                self._busy.clear()
                self._busy.wait(_IDLE)
            looked, worked_before = time.monotonic(), self._worked()
            time.sleep(_LOOK)
            now, busy_since = time.monotonic(), self._rounds.busy_since
            if busy_since != seen:
                seen, late, worked = busy_since, 0.0, worked_before
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
        """Seconds of a processor that the loop's thread has had."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # The thread has ended.
            return 0.0

    def _holder(self) -> Work | None:
        """The work whose code the loop's thread is in. Looked up in its frames: nothing is spent where all is well."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None:
            if frame.f_code is _SERVE:
                found: Work = frame.f_locals["work"]
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


def _name(work: Work) -> str:
    return f"{work.pending.inbox.env_id or 'an environment'} slot {work.pending.slot}: {work.label}"
