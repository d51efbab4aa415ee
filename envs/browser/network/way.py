"""One episode's way out of the real browser: what it may reach, within which bounds, and what it has used of them.

Left out: listening (`proxy`) and the messages of a connection (`exchange`).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from palaestra.envs.browser.network.addresses import Lookup, Refused, system_lookup
from palaestra.envs.browser.network.allow import AllowList
from palaestra.envs.browser.network.transport import first_connected

CHUNK = 64 * 2**10
"""Bytes that are read at once."""
MAX_OWN_LOOKUPS = 32
"""Names that are looked up at once, as many as Chromium connects to: one page's slow names leave room for others'."""
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Of one proxy, so of one episode."""

    head_seconds: float = 10.0
    """For a request's first line and headers to arrive."""
    connect_seconds: float = 10.0
    """To look a name up and connect."""
    idle_seconds: float = 60.0
    """In which at least one byte passes."""
    connection_seconds: float = 300.0
    """For a whole connection."""
    head_bytes: int = 64 * 2**10
    """First line and headers of a request or an answer."""
    request_bytes: int = 8 * 2**20
    """The body of a request."""
    response_bytes: int = 16 * 2**20
    """The body of an answer over plain http."""
    episode_bytes: int = 256 * 2**20
    """All bodies and tunnels, in both directions."""
    connections: int = 128
    """At once."""


@dataclass(slots=True)
class Counts:
    """What a proxy has done so far."""

    allowed: int = 0
    refused: int = 0
    failed: int = 0
    """Allowed, but not reached or not understood."""
    bytes: int = 0


class Answer(Exception):
    """The proxy answers this itself, with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Cut(Exception):
    """A cap is passed in the middle of a message; the connection ends there."""


@dataclass
class Way:
    """Shared by the connections of one proxy."""

    allow: AllowList
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    lookup: Lookup = system_lookup
    counts: Counts = field(default_factory=Counts)
    refusals: deque[str] = field(default_factory=lambda: deque(maxlen=16))
    """What was refused last, in words for the agent: Chromium shows no page of a proxy that refuses a tunnel."""

    _turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MAX_OWN_LOOKUPS))

    def count_bytes(self, size: int) -> None:
        """What passes, in either direction."""
        self.counts.bytes += size
        if self.counts.bytes > self.limits.episode_bytes:
            raise Cut

    async def connect(self, host: str, port: int) -> Pair:
        """A connection to a checked address of this host."""
        if self.counts.bytes >= self.limits.episode_bytes:
            raise Refused(f"nothing more may be loaded: {self.limits.episode_bytes} bytes an episode have passed")

        async def to(address: str, seconds: float) -> Pair:
            async with asyncio.timeout(seconds):
                return await asyncio.open_connection(address, port, limit=CHUNK)

        seconds = self.limits.connect_seconds
        try:
            return await first_connected(self.allow, host, port, seconds, self._looked_up, to)
        except TimeoutError as error:
            raise Answer(504, str(error) or f"{host}:{port} did not answer within {seconds:g} s") from None
        except OSError as error:
            raise Answer(502, f"{host}:{port} was not reached: {error.strerror or error}") from None

    def _looked_up(self, name: str) -> Sequence[str]:
        """On the thread that looks up, which may hang for longer than anybody waits for it."""
        if not self._turns.acquire(blocking=False):
            raise OSError("too many names are being looked up")
        try:
            return self.lookup(name)
        finally:
            self._turns.release()
