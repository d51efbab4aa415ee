"""One event loop in its own thread, for the async jobs of a runner, which are started and reported many at a time.

If a job blocks the loop for long (a blocking call in an `async def`), a warning names it, because every other call
waits until that round of the loop is over. Left out: deadlines (`envs.running.inbox`).
"""

import asyncio
import contextlib
import logging
import selectors
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from palaestra.envs.running.holdups import HELD_SECONDS, frames, still
from palaestra.envs.running.inbox import Inbox, leave_line
from palaestra.envs.running.work import Work

log = logging.getLogger("palaestra.envs")
BLOCKED_SECONDS = 1.0
"""Seconds after which a loop that is blocked while a call is late is replaced, whatever blocks it."""
_LOOK_SECONDS = 0.1
"""Seconds between two checks of the loop while there are jobs."""
_IDLE_SECONDS = 5.0


class _Rounds(selectors.DefaultSelector):
    """Selector of an event loop. It is called once in each round of the loop, and notes when the round began."""

    busy_since = float("inf")
    """Start of the running round on the monotonic clock; infinite while the loop waits."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events, and note when this ended: a round lasts until the next call."""
        self.busy_since = float("inf")
        ready = super().select(timeout)
        self.busy_since = time.monotonic()
        return ready


class LoopThread:
    """A running event loop. Other threads may call `submit`, `cancel`, `blocked`, `runs`, `retire` and `stop`."""

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
        threading.Thread(target=self._watch, name="palaestra-loop-watch", daemon=True).start()

    def submit(self, works: Sequence[Work]) -> None:
        """Run these jobs, with one wake-up for all of them."""
        self._works.extend(works)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._take_in)

    @staticmethod
    def cancel(work: Work) -> None:
        """Cancel a dropped job on the loop that runs it, even if another loop has replaced that one."""
        if work.task is not None:
            with contextlib.suppress(RuntimeError):  # That loop has ended with its tasks.
                work.task.get_loop().call_soon_threadsafe(work.task.cancel)

    def blocked(self) -> str:
        """Return a text that says which job blocks the loop and for how long; "" if none does."""
        seconds = time.monotonic() - self._rounds.busy_since
        if seconds < HELD_SECONDS:
            return ""
        holder = self._holder()
        if holder is None and seconds < BLOCKED_SECONDS:  # It may only be waiting for a processor.
            return ""
        return f"{_name(holder) if holder else 'something'} for {seconds:.1f} s"

    @property
    def runs(self) -> bool:
        """True while the loop's thread has not ended."""
        return self._thread.is_alive()

    def retire(self) -> None:
        """Let the loop finish its present jobs and then end. A loop that is blocked now does so when it is no longer
        blocked."""
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
        """Check from another thread, while there are jobs, that the loop is not blocked; warn of a blocking job."""
        while self.runs:
            if not self._alive:
                self._busy.clear()
                self._busy.wait(_IDLE_SECONDS)
            time.sleep(_LOOK_SECONDS)
            busy_since = self._rounds.busy_since
            if time.monotonic() - busy_since < _LOOK_SECONDS:
                continue
            work = still(self._holder, partial(self._in_round, busy_since))
            if work is not None and (key := (work.pending.inbox.env_id, work.label)) not in self._warned:
                self._warned.add(key)
                log.warning(
                    "%s has held the event loop for %.2f s, and every other async call with it; await what waits "
                    "there, or hand it to asyncio.to_thread (said once)", _name(work), time.monotonic() - busy_since,
                )  # fmt: skip

    def _in_round(self, busy_since: float) -> bool:
        """Return whether the loop runs and is still in the round that began at `busy_since`."""
        return self.runs and self._rounds.busy_since == busy_since

    def _holder(self) -> Work | None:
        """Return the job whose code the loop's thread runs now, found in its stack frames; None if there is none."""
        return next((frame.f_locals["work"] for frame in frames(self._thread) if frame.f_code is _SERVE), None)

    def _run_loop(self) -> None:
        """Run the loop in its thread until it is stopped; then cancel the remaining tasks and close the loop."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._retired = False  # The loop ends now: its last call must not stop it again.
            left: set[asyncio.Task[Any]] = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            try:
                if left:
                    self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            except RuntimeError as error:  # A second request to stop came while the cancelled tasks ended.
                log.debug("the event loop ended before its cancelled tasks: %s", error)
            finally:
                self.loop.close()


_SERVE = LoopThread._serve.__code__


def _name(work: Work) -> str:
    return f"{work.pending.inbox.env_id or 'an environment'} slot {work.pending.slot}: {work.label}"
