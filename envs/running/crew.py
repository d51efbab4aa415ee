"""A bounded pool of threads that runs jobs; a thread that hangs is given up and replaced.

Only a few threads are woken for the jobs that wait, and each of them wakes another before it begins. If all were woken
at once, they would compete for Python's interpreter lock. Each thread polls this lock 200 times a second: a thousand of
them fill a processor with polling alone, and delay the thread that waits for their results.

All threads are daemons, because Python waits at exit for the threads of its standard pool, and one hung tool would keep
the process alive. A thread cannot be killed, so each that was given up may exist for ever. If there are too many, jobs
are refused: an environment that hangs in every call must not fill the computer with threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from palaestra.envs.running.work import Work
from palaestra.errors import Broken, UsageError

MAX_LOST = 512
"""Maximum number of threads that may hang for ever; with this many, no further jobs are accepted."""
_MOST_CALLED = 16
"""Maximum number of threads that are being woken at once: several, so that a slow one does not delay all."""


class Crew:
    """Pool of at most `size` threads, started when they are first needed. `perform` runs a job and never raises."""

    def __init__(self, size: int, perform: Callable[[Work], None], name: str) -> None:
        if size < 1:
            raise UsageError(f"max_workers is {size}; expected at least 1")
        self.size = size
        self._perform = perform
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        self._running: set[Work] = set()
        self._idle: list[threading.Lock] = []
        """Locks behind which idle threads wait to be woken; the last one has waited least."""
        self._called = 0
        """Number of threads that were woken and have not taken the lock yet."""
        self._threads = 0
        self._lost = 0
        self._closed = False

    def put(self, works: Sequence[Work]) -> None:
        """Run these jobs, each as soon as a thread is free."""
        with self._lock:
            if self._closed:
                raise UsageError("this environment is closed; make a new one")
            if self._lost >= MAX_LOST:
                raise Broken(f"{self._lost} threads hang in calls that never return; no further one is started")
            self._waiting += works
            self._call()

    def write_off(self, work: Work) -> None:
        """Give up the thread that runs this job, if there is one: another thread may take its place."""
        with self._lock:
            if work not in self._running:
                return
            self._running.discard(work)
            self._threads -= 1
            self._lost += 1
            self._call()

    def close(self) -> None:
        """Let the idle threads end. Threads that hang end with this Python process."""
        with self._lock:
            self._closed = True
            self._called += len(self._idle)
            while self._idle:
                self._idle.pop().release()

    def _call(self) -> None:
        """Wake or start threads for the waiting jobs, at most _MOST_CALLED at once: each of them wakes the next
        thread."""
        while self._called < min(len(self._waiting), _MOST_CALLED):
            if self._idle:
                self._idle.pop().release()
            elif self._threads < self.size:
                try:
                    threading.Thread(target=self._work, name=self._name, daemon=True).start()
                except RuntimeError as error:  # No more threads: the existing ones take the jobs in turn.
                    if not self._threads:
                        raise Broken(f"no thread could be started: {error}") from error
                    return
                self._threads += 1
            else:
                return
            self._called += 1

    def _take(self) -> Work | None:
        """Return the next job that is still needed, and wake a thread for the one after it; None if there is no job."""
        while self._waiting:
            work = self._waiting.popleft()
            if not work.over:
                self._running.add(work)
                self._call()
                return work
        return None

    def _work(self) -> None:
        """Run jobs in this thread as long as there are any; then wait until the thread is woken."""
        gate = threading.Lock()
        gate.acquire()
        work: Work | None = None
        while True:
            with self._lock:
                if work is None:
                    self._called -= 1
                elif work in self._running:
                    self._running.discard(work)
                else:  # This thread was written off and replaced while it was away.
                    self._lost -= 1
                    return
                work = self._take()
                if work is None:
                    if self._closed:
                        return
                    self._idle.append(gate)
            if work is None:
                gate.acquire()
            else:
                self._perform(work)
