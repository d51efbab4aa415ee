"""Runs jobs: async ones on one event loop, blocking ones in a bounded pool of threads, computations in processes.

A job with a limit first waits in the queue of the limit; its timeout starts when the job begins. Left out: what an
outcome means to the maker of the job, and waiting for it (`inbox`).
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence

from palaestra.envs.running.concurrency_limits import LIMITS
from palaestra.envs.running.crew import Crew
from palaestra.envs.running.inbox import Inbox, leave_line
from palaestra.envs.running.loop import LoopThread
from palaestra.envs.running.processes import run_in_process
from palaestra.envs.running.work import Pending, Work, WorkMode
from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.envs")
MAX_HELD_LOOPS = 8
"""Maximum number of event loops that may be blocked for ever; with this many, no further one is started."""
MAX_PROCESSES = 16


class Runner:
    """Runner of jobs. Threads, loop and processes start when they are first needed."""

    def __init__(self, max_workers: int) -> None:
        self._crew = Crew(max_workers, self._perform, "palaestra-tool")
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._held_loops: list[LoopThread] = []
        self._closed = False

    def start(self, pendings: Iterable[Pending], inbox: Inbox) -> None:
        """Start every job of these Pendings. It is best to start many together: a wake-up of the loop costs as much as
        a call."""
        going: dict[WorkMode, list[Work]] = {}
        now = time.monotonic()
        for pending in pendings:
            pending.runner, pending.inbox = self, inbox
            for work in pending.works:
                work.requested_at = now
                limit = work.conditions.limit
                if limit is None:
                    going.setdefault(work.conditions.mode, []).append(work)
                elif limit.enter(work):
                    self.launch(work)
        for mode, works in going.items():
            self._go(mode, works)

    def launch(self, work: Work) -> None:
        """Start a job that its limit has admitted; the limit's `per_second` may still delay it."""
        assert work.conditions.limit is not None
        delay = work.conditions.limit.delay()
        if delay > 0:
            loop = self._open_loop().loop
            loop.call_soon_threadsafe(loop.call_later, delay, self._begin_in_line, loop, work)
        else:
            self._go(work.conditions.mode, [work])

    def _begin_in_line(self, loop: asyncio.AbstractEventLoop, work: Work) -> None:
        """Begin a job on the loop's thread, at the time that was reserved for it."""
        assert work.conditions.limit is not None
        loop.call_later(work.conditions.limit.belated(), self._go, work.conditions.mode, [work])

    def abandon(self, work: Work) -> None:
        """Drop a running job: a late result is ignored, its thread is replaced, its process is killed."""
        mode = work.conditions.mode
        if mode is WorkMode.BLOCKING:
            self._crew.write_off(work)
        elif mode is WorkMode.ASYNC:
            self._cancel(work)
        elif work.child is not None:
            work.child.stop(work)
        leave_line(work)

    def give_up(self, pending: Pending) -> None:
        """Drop all jobs of a Pending."""
        for work in pending.inbox.give_up(pending):
            self.abandon(work)

    def close(self) -> None:
        """Stop the loop and the idle threads. Threads that hang end with this Python process."""
        self._crew.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loops = [*self._held_loops, *filter(None, [self._loop])]
            self._loop, self._held_loops = None, []
        for loop in loops:
            loop.stop()

    def _go(self, mode: WorkMode, works: Sequence[Work]) -> None:
        """Start jobs in the place that `mode` names: on the loop, in a process or in a thread."""
        try:
            if mode is WorkMode.ASYNC:
                loop = self._open_loop()
                # Timers start now: jobs on a blocked loop must pass their deadlines too.
                works[0].pending.inbox.begin(works)
                loop.submit(works)
            elif mode is WorkMode.PROCESS:
                _shared_processes().put(works)
            else:
                self._crew.put(works)
        except Broken as error:
            for work in works:
                work.error = error
                settle(work)

    def _perform(self, work: Work) -> None:
        """Run a job in this thread. Its timer starts now: the time that it waited for a thread does not count."""
        work.pending.inbox.begin((work,))
        work.perform()
        settle(work)

    def _cancel(self, work: Work) -> None:
        """Cancel an async job. If the loop is blocked, abandon it: the next async job starts another loop."""
        LoopThread.cancel(work)
        loop = self._loop
        if loop is None:
            return
        holder = loop.blocked()
        if holder:
            with self._lock:
                if self._loop is loop:
                    self._loop = None
                    self._held_loops = [held_loop for held_loop in self._held_loops if held_loop.runs] + [loop]
            log.warning("the event loop is held by %s; another is started", holder)
            loop.retire()

    def _open_loop(self) -> LoopThread:
        with self._lock:
            if self._closed:
                raise UsageError("this environment is closed; make a new one")
            if self._loop is None:
                if sum(held_loop.runs for held_loop in self._held_loops) >= MAX_HELD_LOOPS:
                    raise Broken(f"{MAX_HELD_LOOPS} event loops are held by works that never return; none is started")
                self._loop = LoopThread()
            return self._loop


def settle(work: Work) -> None:
    """Report that a job is finished, and start the next job in the queue of its limit."""
    work.pending.inbox.settle((work,))
    leave_line(work)


def wait_for(pending: Pending, env_id: str = "") -> None:
    """Run the jobs of a Pending on the shared runner, and wait until each is over or late."""
    inbox, runner = Inbox(env_id), shared_runner()
    runner.start((pending,), inbox)
    try:
        inbox.wait(None)
    except BaseException:  # After an interrupt, running jobs must not keep their places in a limit.
        runner.give_up(pending)
        raise


_shared: dict[str, Runner] = {}
_processes: Crew | None = None
_shared_lock = threading.Lock()


def shared_runner(name: str = "", max_workers: int = 64) -> Runner:
    """Return the runner of that name, with a loop and threads of its own; "" is that of environments that are stepped
    one by one."""
    with _shared_lock:
        if name not in _shared:
            _shared[name] = Runner(max_workers)
        return _shared[name]


def _shared_processes() -> Crew:
    """Return the shared pool whose threads keep one process each: one for each processor, at most MAX_PROCESSES."""
    global _processes
    with _shared_lock:
        if _processes is None:
            _processes = Crew(min(os.cpu_count() or 1, MAX_PROCESSES), _perform_in_process, "palaestra-process")
        return _processes


def _perform_in_process(work: Work) -> None:
    run_in_process(work)
    settle(work)


def _after_fork() -> None:
    """Reset this module in a forked child, which has none of the parent's threads and starts its own."""
    global _shared, _processes, _shared_lock
    _shared_lock = threading.Lock()
    _shared, _processes = {}, None
    for limit in LIMITS:
        limit.after_fork()


os.register_at_fork(after_in_child=_after_fork)
