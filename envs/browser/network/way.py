"""Network access of one episode in Chromium: what it may reach, its limits, and how much of them it has used.

Not here: `proxy` listens, and `exchange` handles the messages of a connection.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from palaestra.envs.browser.network.addresses import AddressLookup, AddressRefused, Unreached, system_lookup
from palaestra.envs.browser.network.allow import AllowList
from palaestra.envs.browser.network.transport import first_connected

CHUNK = 64 * 2**10
"""Number of bytes to read at once."""
MAX_OWN_LOOKUPS = 32
"""Maximum number of concurrent look-ups of an episode, so that slow names of one page do not block those of others."""
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits of one proxy, which serves one episode."""

    head_seconds: float = 10.0
    """Seconds for the first line and the headers of a request to arrive."""
    connect_seconds: float = 10.0
    """Seconds to look up a name and connect."""
    idle_seconds: float = 60.0
    """Seconds in which at least one byte must be transferred."""
    connection_seconds: float = 300.0
    """Maximum seconds of a whole connection."""
    head_bytes: int = 64 * 2**10
    """Maximum size of the first line and the headers of a request or an answer."""
    request_bytes: int = 8 * 2**20
    """Maximum size of the body of a request."""
    response_bytes: int = 16 * 2**20
    """Maximum size of the body of an answer over plain http."""
    episode_bytes: int = 256 * 2**20
    """Maximum size of all bodies and tunnels together, in both directions."""
    connections: int = 128
    """Maximum number of connections at once."""


@dataclass(slots=True)
class ProxyCounts:
    """Numbers of connections and bytes of a proxy so far."""

    allowed: int = 0
    refused: int = 0
    failed: int = 0
    """Connections that were allowed, but were not reached or not understood."""
    bytes: int = 0


class ProxyResponse(Exception):
    """Raised to answer from the proxy itself, with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Cut(Exception):
    """Raised in the middle of a message, when a limit is exceeded or a side fails; the connection is then cut."""


@dataclass
class Way:
    """State that all connections of one proxy share."""

    allow: AllowList
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    lookup: AddressLookup = system_lookup
    counts: ProxyCounts = field(default_factory=ProxyCounts)
    refusals: deque[str] = field(default_factory=lambda: deque(maxlen=16))
    """The last refusals, as text for the agent, because Chromium shows no page of a proxy that refuses a tunnel."""

    unreached: deque[Unreached] = field(default_factory=lambda: deque(maxlen=16))
    """Hosts without a connection since the last action began."""

    _turns: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MAX_OWN_LOOKUPS))

    def count_bytes(self, size: int) -> None:
        """Count transferred bytes, in either direction; raise `Cut` above the limit."""
        self.counts.bytes += size
        if self.counts.bytes > self.limits.episode_bytes:
            raise Cut

    async def connect(self, host: str, port: int) -> Pair:
        """Connect to a checked address of a host. Raise `AddressRefused`, or `ProxyResponse` if no address answers."""
        if self.counts.bytes >= self.limits.episode_bytes:
            raise AddressRefused(
                f"nothing more may be loaded: {self.limits.episode_bytes} bytes an episode have passed"
            )

        async def to(address: str, seconds: float) -> Pair:
            async with asyncio.timeout(seconds):
                return await asyncio.open_connection(address, port, limit=CHUNK)

        seconds = self.limits.connect_seconds
        try:
            return await first_connected(self.allow, host, port, seconds, self._look_up, to)
        except Unreached as lost:
            self.unreached.append(lost)
            raise ProxyResponse(504 if isinstance(lost.__cause__, TimeoutError) else 502, str(lost)) from None

    def _look_up(self, name: str) -> Sequence[str]:
        """Look up a name on the calling thread, which may hang. Raise OSError if too many look-ups are running."""
        if not self._turns.acquire(blocking=False):
            raise OSError("too many names are being looked up")
        try:
            return self.lookup(name)
        finally:
            self._turns.release()
