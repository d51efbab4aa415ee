"""One engine, two threads: play submits and polls on one, the trainer brings new weights from the other.

Each call has the engine to itself, and whoever brings weights comes next: a thread that polls without a pause would
take a plain lock again at once, and the trainer would wait for ever. Left out: which weights, and when (`learner`).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from palaestra.errors import TrainingHalted
from palaestra.protocols import Completion, Engine, Request

_PATIENCE = 600.0
"""Seconds to wait for a turn. A poll takes about one, new weights as long as it takes to copy them."""


class Turns:
    """A lock whose next holder is the one that asked with urgency."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = False
        self._urgent = 0

    @contextmanager
    def take(self, *, urgent: bool = False) -> Iterator[None]:
        """Have the engine to oneself for a block."""
        with self._changed:
            self._urgent += urgent
            free = self._changed.wait_for(lambda: not self._taken and (urgent or not self._urgent), _PATIENCE)
            self._urgent -= urgent
            if not free:
                raise TrainingHalted(f"the engine did not come free within {_PATIENCE:g} s: a poll or an update hangs")
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()


class EngineInTurns:
    """An engine of which every call waits for its turn."""

    def __init__(self, engine: Engine, turns: Turns) -> None:
        self._engine, self._turns = engine, turns

    @property
    def sampled(self) -> int:
        """Of the engine."""
        return self._engine.sampled

    def submit(self, request: Request) -> int:
        """Ask for a turn."""
        with self._turns.take():
            return self._engine.submit(request)

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Answers that are ready."""
        with self._turns.take():
            return self._engine.poll(timeout)

    def cancel(self, ticket: int) -> None:
        """Forget a request."""
        with self._turns.take():
            self._engine.cancel(ticket)

    def close(self) -> None:
        """Release everything."""
        self._engine.close()
