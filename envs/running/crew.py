"""A bounded crew of threads that runs jobs; one that hangs is written off and another takes its place.

All threads are daemons of our own: the standard pool is joined at exit, so one hung tool would keep the process alive.
A thread cannot be killed, so each that was written off may stay for ever. When too many have, jobs are refused: an
environment that hangs in every call must not fill the machine with threads.
"""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from palaestra.envs.running.inbox import Job
from palaestra.errors import Broken, UsageError

MAX_LOST = 512
"""Threads that may hang for ever before no further job is taken."""


class Crew:
    """At most `size` threads, started when they are first needed. `perform` runs a job and never raises."""

    def __init__(self, size: int, perform: Callable[[Job], None], name: str) -> None:
        if size < 1:
            raise UsageError(f"max_workers is {size}; expected at least 1")
        self.size = size
        self._perform = perform
        self._name = name
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads = 0
        self._pending = 0
        """Jobs that wait or run."""
        self._running: set[Job] = set()
        self._lost = 0
        self._closed = False

    def put(self, jobs: Sequence[Job]) -> None:
        """Run these jobs, each as soon as a thread is free."""
        with self._lock:
            if self._closed:
                raise UsageError("this environment is closed; make a new one")
            if self._lost >= MAX_LOST:
                raise Broken(f"{self._lost} threads hang in calls that never return; no further one is started")
            self._pending += len(jobs)
            for _ in range(min(self._pending, self.size) - self._threads):
                self._spawn()
        for job in jobs:
            self._jobs.put(job)

    def write_off(self, job: Job) -> None:
        """Forget the thread that runs this job, where there is one."""
        with self._lock:
            if job not in self._running:
                return
            self._running.discard(job)
            self._threads -= 1
            self._pending -= 1
            self._lost += 1
            if self._pending > self._threads:
                self._spawn()

    def close(self) -> None:
        """Let the idle threads go. Hung ones die with the process."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _spawn(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            with self._lock:
                if not job.over:
                    self._running.add(job)
                else:  # Given up while it waited.
                    self._pending -= 1
                    continue
            self._perform(job)
            with self._lock:
                if job not in self._running:  # This thread was written off and replaced while it was away.
                    self._lost -= 1
                    return
                self._running.discard(job)
                self._pending -= 1
