"""Limits on the total use of a server by all clients: some programs run at once, some wait, others are refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

from palaestra.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits on the total use of a server by all clients."""

    most_sessions: int = 256
    """Maximum number of sessions alive at once."""
    most_running: int = 32
    """Maximum number of programs that run at once; others wait."""
    most_waiting: int = 256
    """Maximum number of waiting programs; further ones are refused until a place is free."""
    most_seconds: float = 600.0
    """Maximum timeout of a run, in seconds."""
    idle_seconds: float = 900.0
    """Seconds without a request after which a session is ended."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"{field.name} is {value}; expected a number above 0")


class Full(Exception):
    """Raised when the server has no free place for a session or a program at the moment."""


class Admission:
    """Lets a limited number of programs run at once, in the order in which they arrived."""

    def __init__(self, service: ServiceLimits) -> None:
        self._service = service
        self._slots = asyncio.Semaphore(service.most_running)
        self.running = self.waiting = 0

    @asynccontextmanager
    async def admitted(self, patience: float) -> AsyncIterator[None]:
        """Hold a run slot during the block.

        Raise `Full` if too many programs wait or no slot is free within `patience` seconds.
        """
        if self._slots.locked() and self.waiting >= self._service.most_waiting:
            raise Full
        self.waiting += 1
        try:
            async with asyncio.timeout(patience if self._slots.locked() else None):
                await self._slots.acquire()
        except TimeoutError:
            raise Full from None
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._slots.release()
