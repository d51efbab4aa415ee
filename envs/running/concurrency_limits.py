"""Limits of one tool: how many calls run at once, and how many begin in a second, in all environments of a process.

A call that may not begin yet waits in a queue, first come first served, and uses no thread while it waits. Left out:
limits across processes (a matter of the server), and the tool's timeout, which begins with the call, not in the queue.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any


class Limit:
    """Limit of one tool, with the queue of its waiting calls, each a Work."""

    def __init__(self, concurrency: int | None, per_second: float | None) -> None:
        self.concurrency = concurrency
        self.per_second = per_second
        self._lock = threading.Lock()
        self._inside = 0
        self._queue: deque[Any] = deque()
        self._next_start = 0.0
        """First time that is not reserved, on the monotonic clock."""
        self._next_turn = 0.0
        """Earliest time for the next call, by those that have begun."""

    def enter(self, job: Any) -> bool:
        """Return True if the call may begin now. Otherwise put it into the queue and return False; a later `leave`
        returns it."""
        with self._lock:
            if self.concurrency is not None and self._inside >= self.concurrency:
                self._queue.append(job)
                return False
            self._inside += 1
            job.admitted = True
            return True

    def leave(self, job: Any) -> Any | None:
        """Release the place of a call that is over or dropped, and return the next call to begin, or None. It may be
        called twice."""
        with self._lock:
            if not job.admitted:
                return None
            job.admitted = False
            while self._queue:
                following = self._queue.popleft()
                if not following.over:
                    following.admitted = True
                    return following
            self._inside -= 1
            return None

    def delay(self) -> float:
        """Reserve the next start, and return the seconds until then."""
        if self.per_second is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + 1.0 / self.per_second
            if start == now:
                self._next_turn = self._next_start
            return start - now

    def belated(self) -> float:
        """Return the seconds that a reserved start still has to wait, because earlier calls began late.

        Without this wait, all calls that became due while the computer was paused would begin at once.
        """
        assert self.per_second is not None
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next_turn)
            self._next_turn = turn + 1.0 / self.per_second
            return turn - now

    def after_fork(self) -> None:
        """Reset the limit in a forked child, because the threads that would call `leave` do not exist in it."""
        self._lock = threading.Lock()
        self._inside = 0
        self._queue.clear()


@cache
def limit_of(function: Callable[..., Any], concurrency: int | None, per_second: float | None) -> Limit | None:
    """Return the one limit of a decorated method, which subclasses share; None if the method has no limit."""
    if concurrency is None and per_second is None:
        return None
    limit = Limit(concurrency, per_second)
    LIMITS.append(limit)
    return limit


LIMITS: list[Limit] = []
"""All limits of this process."""
