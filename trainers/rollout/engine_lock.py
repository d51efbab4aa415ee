"""A lock for an engine that two threads use: one thread plays (submits and polls), the other updates the weights.

Only one thread calls the engine at a time, and an urgent caller goes first. With a plain lock, the thread that polls
again and again would take the lock each time, and the trainer would wait for ever. Not here: which weights are sent,
and when (`learn.learner`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from palaestra.errors import TrainingHalted
from palaestra.protocols import Completion, Engine, Request

_TIMEOUT = 600.0
"""Seconds to wait for the lock. A poll takes about one; an update of the weights takes as long as the copy."""


class EngineLock:
    """A lock that serves urgent requests first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0

    @contextmanager
    def take(self, *, urgent: bool = False) -> Iterator[None]:
        """Hold the lock for a `with` block."""
        with self._changed:
            self._urgent += urgent
            try:
                free = self._changed.wait_for(lambda: not self._taken and (urgent or not self._urgent), _TIMEOUT)
            finally:  # An interrupt may end the wait.
                self._urgent -= urgent
            if not free:
                raise TrainingHalted(f"the engine did not come free within {_TIMEOUT:g} s: a poll or an update hangs")
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()


class LockedEngine:
    """An engine wrapper that takes the lock for each call."""

    def __init__(self, engine: Engine, lock: EngineLock) -> None:
        self._engine, self._lock = engine, lock

    @property
    def sampled(self) -> int:
        """Return the number of tokens that the engine has sampled."""
        return self._engine.sampled

    def submit(self, request: Request) -> int:
        """Submit a request."""
        with self._lock.take():
            return self._engine.submit(request)

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return the completions that are ready."""
        with self._lock.take():
            return self._engine.poll(timeout)

    def cancel(self, ticket: int) -> None:
        """Cancel a request."""
        with self._lock.take():
            self._engine.cancel(ticket)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()
