"""Several servers of one model as one: each question goes to the least loaded, and to another one if that fails.

A server that fails gets no more questions until it passes a health check, a free request that is sent every few
seconds. So no question waits for a server that hangs. If all servers have failed, a question tries them again for
`patience` seconds. Until some question is answered after that, each question tries every server only once. Everything
runs on one event loop. Left out: the content of questions, and a server's own timeouts (`client`).
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palaestra.endpoint.reply import ChatCompletion
from palaestra.episode import Message
from palaestra.errors import Broken, UsageError

_CHECK_SECONDS = 5.0
"""Seconds in which a healthy server answers a health check."""
_FIRST_WAIT = 0.5
"""Seconds before all servers are tried again; they double with each further time."""


class Served(Protocol):
    """A source of answers: an `Endpoint`, or a model in this process with the same methods."""

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float
    ) -> Coroutine[Any, Any, ChatCompletion]:
        """Return the next turn. Raise `Broken` or `UsageError` if there is none."""

    def check(self) -> Coroutine[Any, Any, None]:
        """Raise a UsageError if the source cannot be reached."""

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Close the connections."""


@dataclass(slots=True)
class _Line:
    """A server with its load and health."""

    server: Served
    at_work: int = 0
    well: bool = True
    check: "asyncio.Task[None] | None" = None


class Balanced:
    """A `Served` that distributes questions among several servers."""

    def __init__(self, servers: Sequence[Served], *, check_interval: float = 10.0, patience: float = 0.0) -> None:
        """`check_interval`: seconds before each health check. `patience`: seconds to retry a question that no server
        answers.
        """
        self.failed = 0
        """Number of times that a server gave no answer."""
        self.reason = ""
        """Reason of the last failure."""
        self._lines = [_Line(server) for server in servers]
        self._check_interval, self._patience, self._silent = check_interval, patience, False

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> ChatCompletion:
        """Return the answer of the server with the fewest questions; of another if that server fails."""
        deadline, wait = time.monotonic() + self._patience, _FIRST_WAIT
        while True:
            left, failures = list(self._lines), list[Exception]()
            while left:
                well = [server for server in left if server.well]
                line = min(well or left, key=lambda server: server.at_work)
                left.remove(line)
                line.at_work += 1
                try:
                    answer = await line.server.complete(messages, max_tokens=max_tokens, temperature=temperature)
                except (Broken, UsageError) as error:
                    failures.append(error)
                    self._leave(line, str(error))
                else:
                    line.well, self._silent = True, False
                    return answer
                finally:
                    line.at_work -= 1
            message = "the judge: " + "; ".join(dict.fromkeys(map(str, failures)))
            if all(isinstance(error, UsageError) for error in failures):
                raise UsageError(message)
            if self._silent or time.monotonic() + wait > deadline:
                self._silent = True
                raise Broken(message)
            await asyncio.sleep(wait)
            wait = min(2 * wait, self._check_interval)

    async def check(self) -> None:
        """Raise a UsageError if no server can be reached."""
        failures = await asyncio.gather(*(line.server.check() for line in self._lines), return_exceptions=True)
        if all(failures):
            raise UsageError("; ".join(map(str, failures)))

    async def aclose(self) -> None:
        """Close the connections."""
        for line in self._lines:
            if line.check is not None:
                line.check.cancel()
            await line.server.aclose()

    def _leave(self, line: _Line, reason: str) -> None:
        """Send the server no more questions until it has passed a health check."""
        self.failed, self.reason, line.well = self.failed + 1, reason, False
        if line.check is None or line.check.done():
            line.check = asyncio.create_task(self._watched(line))

    async def _watched(self, line: _Line) -> None:
        while not line.well:
            await asyncio.sleep(self._check_interval)
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await line.server.check()
                line.well = True
            except (UsageError, Broken, TimeoutError):
                continue
