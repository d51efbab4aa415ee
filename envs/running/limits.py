"""How many calls of one tool run at once, and how many begin in a second, in all environments of this process.

A call that may not begin yet stands in line, first come first served, and holds no thread meanwhile. Left out: limits
across processes (a server's own affair), and the tool's deadline, which begins with the call and not in the line.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol


class Standing(Protocol):
    """A call in line."""

    admitted: bool
    over: bool
    """True once nobody wants it any more."""


class Limit:
    """The line in front of one tool."""

    def __init__(self, concurrency: int | None, per_second: float | None) -> None:
        self.concurrency = concurrency
        self.per_second = per_second
        self._lock = threading.Lock()
        self._inside = 0
        self._line: deque[Any] = deque()
        self._next_start = 0.0
        """The first moment that is not reserved."""
        self._next_turn = 0.0
        """The first moment at which a call may begin by those that have begun."""

    def enter(self, job: Standing) -> bool:
        """True where the call may go in now; otherwise it stands in line, and `leave` will hand it out."""
        with self._lock:
            if self.concurrency is not None and self._inside >= self.concurrency:
                self._line.append(job)
                return False
            self._inside += 1
            job.admitted = True
            return True

    def leave(self, job: Standing) -> Any | None:
        """A call is over, or given up; the one that may go in for it. Leaving twice is nothing."""
        with self._lock:
            if not job.admitted:
                return None
            job.admitted = False
            while self._line:
                following = self._line.popleft()
                if not following.over:
                    following.admitted = True
                    return following
            self._inside -= 1
            return None

    def delay(self) -> float:
        """Reserve the next start: seconds until it may be."""
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
        """At a reserved start: seconds that it has to wait after all, where those before it have begun late.

        Without it all that fell due while a machine stood still would begin at once.
        """
        assert self.per_second is not None
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next_turn)
            self._next_turn = turn + 1.0 / self.per_second
            return turn - now

    def after_fork(self) -> None:
        """In a forked copy nobody is inside: the threads that would leave are not in it."""
        self._lock = threading.Lock()
        self._inside = 0
        self._line.clear()


@cache
def limit_of(function: Callable[..., Any], concurrency: int | None, per_second: float | None) -> Limit | None:
    """The one limit of a decorated method, whoever inherits it; None where it has none."""
    if concurrency is None and per_second is None:
        return None
    made = Limit(concurrency, per_second)
    LIMITS.append(made)
    return made


LIMITS: list[Limit] = []
"""Every limit of this process."""
