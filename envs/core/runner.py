"""Runs the calls of a turn at once: async tools on one event loop, blocking ones in a bounded pool of threads.

All threads are daemons of our own: the standard pool is joined at exit, so one hung tool would keep the process
alive. A thread cannot be killed; one that passes its deadline is written off and another takes its place, so that
hung tools never starve the rest. Left out: what a deadline means for the episode (`env`, `vector`).
"""

import asyncio
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from palaestra.envs.core.calls import Prepared, failed, run, run_async
from palaestra.envs.core.tool import Mode
from palaestra.episode import Call
from palaestra.errors import UsageError

_GLANCE = 0.05
"""Seconds between looks at the deadlines while a call still waits for a thread and has none yet."""


class Turn:
    """The calls of one turn, in flight. Its state is guarded by the runner's lock."""

    __slots__ = ("abandoned", "calls", "deadlines", "done", "futures", "left", "prepared", "running", "slot")

    def __init__(self, slot: int, prepared: list[Prepared], done: "SimpleQueue[Turn]") -> None:
        self.slot = slot
        self.prepared = prepared
        self.done = done
        self.calls: list[Call | None] = [None] * len(prepared)
        self.left = len(prepared)
        self.deadlines: dict[int, float] = {}
        self.running: set[int] = set()
        self.futures: list[Future[None]] = []
        self.abandoned = False

    def results(self) -> list[Call]:
        """The calls in call order, once all are in."""
        return [call for call in self.calls if call is not None]


class Runner:
    """A place to run calls. Threads and loop start when they are first needed."""

    def __init__(self, max_workers: int) -> None:
        if max_workers < 1:
            raise UsageError(f"max_workers is {max_workers}; expected at least 1")
        self._max_workers = max_workers
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[tuple[Turn, int] | None] = SimpleQueue()
        self._threads = 0
        self._pending = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def start(self, turn: Turn) -> None:
        """Set every call of the turn going; plain ones run here and now, after the others have started."""
        if not turn.prepared:
            turn.done.put(turn)
        inline = []
        for index, prepared in enumerate(turn.prepared):
            if prepared.mode is Mode.ASYNC:
                self._start_async(turn, index)
            elif prepared.mode is Mode.BLOCKING:
                self._start_thread(turn, index)
            else:
                inline.append(index)
        for index in inline:
            self._settle(turn, index, run(turn.prepared[index]))

    def wait(
        self, done: "SimpleQueue[Turn]", turns: Collection[Turn], until: float | None
    ) -> tuple[Turn, int | None] | None:
        """A turn that is finished, or one that is overdue and the index of its late call, or None at `until`."""
        while True:
            now = time.monotonic()
            next_look = now + _GLANCE
            with self._lock:
                waits_for_thread = False
                soonest = float("inf")
                for turn in turns:
                    for index, deadline in turn.deadlines.items():
                        if deadline <= now and turn.left:
                            return turn, index
                        soonest = min(soonest, deadline)
                    waits_for_thread |= len(turn.deadlines) < turn.left
            if not waits_for_thread:
                next_look = soonest
            if until is not None:
                next_look = min(next_look, until)
            try:
                if next_look <= now:
                    return done.get_nowait(), None
                return done.get(timeout=None if next_look == float("inf") else next_look - now), None
            except Empty:
                if until is not None and time.monotonic() >= until:
                    return None

    def abandon(self, turn: Turn) -> None:
        """Forget a turn: late results are dropped, and threads that are in it are replaced."""
        with self._lock:
            turn.abandoned = True
            turn.deadlines.clear()
            lost = len(turn.running)
            self._threads -= lost
            self._pending -= lost
            if lost and self._pending > self._threads:
                self._spawn()
        for future in turn.futures:
            future.cancel()

    def close(self) -> None:
        """Stop the loop and the idle threads. Hung ones die with the process."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _settle(self, turn: Turn, index: int, call: Call) -> None:
        with self._lock:
            turn.deadlines.pop(index, None)
            if turn.abandoned or turn.calls[index] is not None:
                return
            turn.calls[index] = call
            turn.left -= 1
            last = turn.left == 0
        if last:
            turn.done.put(turn)

    def _start_thread(self, turn: Turn, index: int) -> None:
        with self._lock:
            if self._closed:
                raise UsageError("this environment is closed; make a new one")
            self._pending += 1
            if self._pending > self._threads and self._threads < self._max_workers:
                self._spawn()
        self._jobs.put((turn, index))

    def _spawn(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="palaestra-tool", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            turn, index = job
            with self._lock:
                if turn.abandoned:
                    self._pending -= 1
                    continue
                turn.running.add(index)
                tool = turn.prepared[index].tool
                # The clock starts here and not in the queue: waiting for a thread is not the tool's fault.
                turn.deadlines[index] = time.monotonic() + (tool.timeout if tool else 0.0)
            try:
                call = run(turn.prepared[index])
            except BaseException as error:  # Whatever it is, a turn must not wait for a thread that is gone.
                call = failed(turn.prepared[index], error)
            with self._lock:
                if turn.abandoned:  # This thread was written off and replaced while it was away.
                    return
                turn.running.discard(index)
                self._pending -= 1
            self._settle(turn, index, call)

    def _start_async(self, turn: Turn, index: int) -> None:
        tool = turn.prepared[index].tool
        assert tool is not None
        with self._lock:
            if self._closed:
                raise UsageError("this environment is closed; make a new one")
            loop = self._loop if self._loop is not None else self._start_loop()
            # From now on: a loop that some tool blocks must show up as a deadline too.
            turn.deadlines[index] = time.monotonic() + tool.timeout
        turn.futures.append(asyncio.run_coroutine_threadsafe(self._run_async(turn, index), loop))

    async def _run_async(self, turn: Turn, index: int) -> None:
        try:
            call = await run_async(turn.prepared[index])
        except BaseException as error:  # A tool may cancel itself; a turn we abandoned ignores what comes.
            if not turn.abandoned:
                self._settle(turn, index, failed(turn.prepared[index], error))
            raise
        self._settle(turn, index, call)

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=_run_loop, args=(loop,), name="palaestra-loop", daemon=True).start()
        self._loop = loop
        return loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """The loop's thread: runs until stopped, then cancels what is left and closes."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left: set[asyncio.Task[Any]] = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.close()


_shared: Runner | None = None
_shared_lock = threading.Lock()


def shared_runner() -> Runner:
    """The runner of environments that are stepped one by one."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Runner(max_workers=64)
        return _shared
