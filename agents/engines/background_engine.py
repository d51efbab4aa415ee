"""Base class of engines that answer each request with a coroutine, on an event loop in a separate thread.

Left out: the requests themselves, and closing the loop, which must also close what the coroutines use.
"""

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from palaestra.endpoint.background import BackgroundLoop
from palaestra.protocols import Completion


class BackgroundEngine:
    """The requests without an answer, by ticket, and a queue of the answers from the event loop."""

    remote = True
    """The answers are made elsewhere: who polls waits for a server."""

    def __init__(self, name: str) -> None:
        self._background = BackgroundLoop(name)
        self._tickets = count()
        self._live: dict[int, tuple[Future[None], Any]] = {}
        """Running work and request, by ticket."""
        self._outcomes: SimpleQueue[Completion | Exception] = SimpleQueue()
        self._error: Exception | None = None

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return the completions received so far; wait up to `timeout` seconds for the first.

        If an error occurred while a request was answered, raise that error.
        """
        deadline = time.monotonic() + timeout
        ready: list[Completion] = []
        while self._live and self._error is None:
            seconds = 0.0 if ready else deadline - time.monotonic()
            try:
                outcome = self._outcomes.get(timeout=seconds) if seconds > 0 else self._outcomes.get_nowait()
            except Empty:
                break
            if isinstance(outcome, Exception):
                self._error = outcome
            elif self._live.pop(outcome.ticket, None) is not None:
                ready.append(outcome)
        if self._error is not None:
            raise self._error
        return ready

    def cancel(self, ticket: int) -> None:
        """Cancel a request. If its answer has come already, `poll` does not return it."""
        if ticket in self._live:
            self._live.pop(ticket)[0].cancel()

    def _start(self, ticket: int, answer: Callable[[], Awaitable[Completion | None]], request: Any) -> int:
        """Begin to answer a request and return its ticket. If `answer` returns None, there is no completion."""
        self._live[ticket] = self._background.submit(self._answer(answer)), request
        return ticket

    async def _answer(self, answer: Callable[[], Awaitable[Completion | None]]) -> None:
        """Queue an answer, or an error, which `poll` then raises on the caller's thread. Runs on the loop's thread."""
        try:
            completion = await answer()
            if completion is not None:
                self._outcomes.put(completion)
        except Exception as error:
            self._outcomes.put(error)
