"""Several servers of one model as one: the least loaded is asked, and what one fails to answer is asked of another.

A server that fails gets no more questions until it has passed a health check, a free question every few seconds, so
that no question waits for a server that hangs. Where none is well, each is tried again, for as long as the patience
lasts; once a question was given up so and none answered since, no other waits as long. All of it happens on one event
loop. Left out: what a server is asked, and its own deadlines (`client`).
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palaestra.endpoint.reply import Answer
from palaestra.episode import Message
from palaestra.errors import Broken, UsageError

_CHECK_SECONDS = 5.0
"""In which a server that is well answers a health check."""
_FIRST_WAIT = 0.5
"""Seconds before all servers are tried again; they double with each further time."""


class Served(Protocol):
    """What answers: an `Endpoint`, or a model of this process with the same methods."""

    def complete(
        self, messages: Sequence[Message], *, max_tokens: int, temperature: float
    ) -> Coroutine[Any, Any, Answer]:
        """The next turn; `Broken` or `UsageError` where there is none."""

    def check(self) -> Coroutine[Any, Any, None]:
        """A UsageError where it cannot be reached."""

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Close the connections."""


@dataclass(slots=True)
class _Line:
    """A server, and how busy it is."""

    server: Served
    at_work: int = 0
    well: bool = True
    check: "asyncio.Task[None] | None" = None


class Balanced:
    """A `Served` of several."""

    def __init__(self, servers: Sequence[Served], *, rest: float = 10.0, patience: float = 0.0) -> None:
        """`rest` seconds pass before each health check; `patience` is for a question that no server answers."""
        self.failed = 0
        """Times that a server gave no answer."""
        self.reason = ""
        """Why, the last time."""
        self._lines = [_Line(server) for server in servers]
        self._rest, self._patience, self._silent = rest, patience, False

    async def complete(self, messages: Sequence[Message], *, max_tokens: int, temperature: float) -> Answer:
        """The answer of the server with the fewest questions; of another, where it fails."""
        until, wait = time.monotonic() + self._patience, _FIRST_WAIT
        while True:
            left, failures = list(self._lines), list[Exception]()
            while left:
                line = min([one for one in left if one.well] or left, key=lambda one: one.at_work)
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
            told = "the judge: " + "; ".join(dict.fromkeys(map(str, failures)))
            if all(isinstance(error, UsageError) for error in failures):
                raise UsageError(told)
            if self._silent or time.monotonic() + wait > until:
                self._silent = True
                raise Broken(told)
            await asyncio.sleep(wait)
            wait = min(2 * wait, self._rest)

    async def check(self) -> None:
        """A UsageError where no server can be reached."""
        found = await asyncio.gather(*(line.server.check() for line in self._lines), return_exceptions=True)
        if all(found):
            raise UsageError("; ".join(map(str, found)))

    async def aclose(self) -> None:
        """Close the connections."""
        for line in self._lines:
            if line.check is not None:
                line.check.cancel()
            await line.server.aclose()

    def _leave(self, line: _Line, reason: str) -> None:
        """No more questions for it until it is well."""
        self.failed, self.reason, line.well = self.failed + 1, reason, False
        if line.check is None or line.check.done():
            line.check = asyncio.create_task(self._watched(line))

    async def _watched(self, line: _Line) -> None:
        while not line.well:
            await asyncio.sleep(self._rest)
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await line.server.check()
                line.well = True
            except (UsageError, Broken, TimeoutError):
                continue
