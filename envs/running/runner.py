"""Runs the calls of a turn at once: async tools on one event loop, blocking ones in a bounded crew of threads, those
that compute for long in processes.

A call first stands in its tool's line where the tool has limits; its clock starts when it begins. Left out: what a
deadline means for the episode (`env`, `vector`), and waiting for results (`inbox`).
"""

import asyncio
import logging
import os
import threading
from collections.abc import Iterable, Sequence

from palaestra.envs.core.calls import Prepared, failed, run
from palaestra.envs.core.tool import Mode
from palaestra.envs.running.crew import Crew
from palaestra.envs.running.inbox import Inbox, Job, Turn, leave_line
from palaestra.envs.running.limits import LIMITS
from palaestra.envs.running.loop import Lag, LoopThread
from palaestra.envs.running.processes import run_in_process
from palaestra.episode import Call
from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.envs")
MAX_HELD_LOOPS = 8
"""Event loops that may be held for ever before no further one is started."""
MAX_PROCESSES = 16


class Runner:
    """A place to run calls. Threads, loop and processes start when they are first needed."""

    def __init__(self, max_workers: int) -> None:
        self._crew = Crew(max_workers, self._perform, "palaestra-tool")
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._held_loops: list[LoopThread] = []
        self._closed = False

    @property
    def lag(self) -> Lag:
        """How late the event loop was."""
        return Lag() if self._loop is None else self._loop.lag

    def start(self, turns: Iterable[Turn]) -> None:
        """Set every call of these turns of one inbox going; plain ones run here and now, after the others have started.

        Many turns are best started together: a wake-up of the loop costs as much as a call.
        """
        going: dict[Mode, list[Job]] = {}
        for turn in turns:
            turn.runner = self
            for job in turn.jobs:
                limit = job.prepared.limit if job.mode is not Mode.INLINE else None
                if limit is None:
                    going.setdefault(job.mode, []).append(job)
                elif limit.enter(job):
                    self.launch(job)
        inline = going.pop(Mode.INLINE, ())
        for mode, jobs in going.items():
            self._go(mode, jobs)
        for job in inline:
            self._settle(job, run(job.prepared))

    def launch(self, job: Job) -> None:
        """A job that its tool's limit has let in; its rate may still make it wait."""
        assert job.prepared.limit is not None
        delay = job.prepared.limit.delay()
        if delay > 0:
            loop = self._open_loop().loop
            loop.call_soon_threadsafe(loop.call_later, delay, self._begin_in_turn, loop, job)
        else:
            self._go(job.mode, [job])

    def _begin_in_turn(self, loop: asyncio.AbstractEventLoop, job: Job) -> None:
        """On the loop's thread: the moment that a job reserved has come."""
        assert job.prepared.limit is not None
        loop.call_later(job.prepared.limit.belated(), self._go, job.mode, [job])

    def abandon(self, turn: Turn) -> None:
        """Forget a turn: late results are dropped, threads that are in it are replaced, processes are killed."""
        for job in turn.inbox.give_up(turn):
            if job.mode is Mode.BLOCKING:
                self._crew.write_off(job)
            elif job.mode is Mode.ASYNC:
                self._cancel(job)
            elif job.child is not None:
                job.child.stop(job)
            leave_line(job)

    def close(self) -> None:
        """Stop the loop and the idle threads. Hung ones die with the process."""
        self._crew.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loops = [*self._held_loops, *filter(None, [self._loop])]
            self._loop, self._held_loops = None, []
        for loop in loops:
            loop.stop()

    def _go(self, mode: Mode, jobs: Sequence[Job]) -> None:
        """Where their tools run."""
        try:
            if mode is Mode.ASYNC:
                loop = self._open_loop()
                # From now on: a loop that some tool blocks must show up as a deadline too.
                jobs[0].turn.inbox.begin(jobs)
                loop.submit(jobs)
            elif mode is Mode.PROCESS:
                _shared_processes().put(jobs)
            else:
                self._crew.put(jobs)
        except Broken as error:
            for job in jobs:
                self._settle(job, failed(job.prepared, error))

    def _perform(self, job: Job) -> None:
        """A thread's work. The clock starts here: waiting for a thread is not the tool's fault."""
        job.turn.inbox.begin((job,))
        try:
            call = run(job.prepared, job.until)
        except BaseException as error:  # Whatever it is, a turn must not wait for a thread that is gone.
            call = failed(job.prepared, error)
        self._settle(job, call)

    def _settle(self, job: Job, call: Call) -> None:
        job.call = call
        job.turn.inbox.settle((job,))
        leave_line(job)

    def _cancel(self, job: Job) -> None:
        """Stop an async tool. A loop that is held for good is left to itself, and another takes its place."""
        LoopThread.cancel(job)
        loop = self._loop
        if loop is None:
            return
        holder = loop.blocked()
        if holder:
            with self._lock:
                if self._loop is loop:
                    self._loop = None
                    self._held_loops = [one for one in self._held_loops if one.runs] + [loop]
            log.warning("the event loop is held by %s; another is started", holder)
            loop.retire()

    def _open_loop(self) -> LoopThread:
        with self._lock:
            if self._closed:
                raise UsageError("this environment is closed; make a new one")
            if self._loop is None:
                if sum(one.runs for one in self._held_loops) >= MAX_HELD_LOOPS:
                    raise Broken(f"{MAX_HELD_LOOPS} event loops are held by tools that never return; none is started")
                self._loop = LoopThread()
            return self._loop


def take_turn(env_id: str, slot: int, prepared: Sequence[Prepared]) -> tuple[list[Call], Prepared | None]:
    """Run the calls of one turn and wait for them: their results, or the one that passed its deadline."""
    inbox = Inbox(env_id)
    turn = Turn(slot, prepared, inbox)
    runner = shared_runner()
    runner.start((turn,))
    try:
        _, late = inbox.wait(None)
    except BaseException:  # An interrupt: what runs must not keep its place in a line.
        runner.abandon(turn)
        raise
    if late is None:
        return turn.calls, None
    runner.abandon(turn)
    return [], late.prepared


_shared: Runner | None = None
_processes: Crew | None = None
_shared_lock = threading.Lock()


def shared_runner() -> Runner:
    """The runner of environments that are stepped one by one."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Runner(max_workers=64)
        return _shared


def _shared_processes() -> Crew:
    """The crew whose threads keep a process each: as many as there are processors, for all environments."""
    global _processes
    with _shared_lock:
        if _processes is None:
            _processes = Crew(min(os.cpu_count() or 1, MAX_PROCESSES), _perform_in_process, "palaestra-process")
        return _processes


def _perform_in_process(job: Job) -> None:
    call = run_in_process(job)
    job.turn.runner._settle(job, call)


def _after_fork() -> None:
    """A forked copy of us has none of our threads: it starts its own."""
    global _shared, _processes, _shared_lock
    _shared_lock = threading.Lock()
    _shared = _processes = None
    for limit in LIMITS:
        limit.after_fork()


os.register_at_fork(after_in_child=_after_fork)
