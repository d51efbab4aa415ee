"""A transport for httpx that connects to checked addresses alone: the network of the text browser.

http and https only; the host of each new connection is resolved, checked and connected to in one go, so that no second
look-up can answer otherwise. The name stays in the Host header, in TLS and in the check of the certificate. A client
that uses it follows redirects itself, one request each, so each is checked. Left out: sizes and types of bodies and
cookies, which are the browser's.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.envs.browser.network.addresses import Lookup, Refused, system_lookup
from palaestra.envs.browser.network.allow import AllowList
from palaestra.errors import MissingExtra

if TYPE_CHECKING:
    import httpcore
    import httpx

T = TypeVar("T")
CONNECT_SECONDS = 10.0
"""For looking up and connecting, where a request says nothing of it."""
FIRST_SECONDS = 2.0
"""For one address, where there is another one to try."""
MAX_CONNECTIONS = 256
MAX_IDLE = 32
"""Connections that are kept for the next request."""
IDLE_SECONDS = 15.0


async def first_connected(
    allow: AllowList,
    host: str,
    port: int,
    seconds: float,
    lookup: Lookup,
    connect: Callable[[str, float], Awaitable[T]],
) -> T:
    """Connect to the first checked address of a host that answers. `Refused`, or what the last `connect` raised."""
    begun = time.monotonic()
    addresses = await allow.addresses(host, port, seconds, lookup)
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share = seconds - (time.monotonic() - begun)
        if left > 1:  # A dead address leaves time for the others.
            share = min(share / left, FIRST_SECONDS)
        try:
            return await connect(str(address), max(share, 0.001))
        except Exception:
            if left == 1:
                raise
    raise OSError("no address")


class CheckedNetwork:
    """What a connection of httpcore is opened by (its `AsyncNetworkBackend`): to checked addresses only."""

    def __init__(self, allow: AllowList, lookup: Lookup) -> None:
        import httpcore

        self._allow, self._lookup, self._plain = allow, lookup, httpcore.AnyIOBackend()
        self.opened: Any = None

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, *more: Any, **options: Any) -> Any:
        """Look up, check and connect."""
        import httpcore

        async def connect(address: str, seconds: float) -> Any:
            return await self._plain.connect_tcp(address, port, seconds, *more, **options)

        seconds = CONNECT_SECONDS if timeout is None else timeout
        try:
            self.opened = await first_connected(self._allow, host, port, seconds, self._lookup, connect)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from None
        return self.opened


class Connections:
    """Connections under one allow-list: never used under another one, kept for a while, bounded in number.

    httpcore's own pool is not used: it loses a connection for ever when its request is given up in a bad moment.
    """

    def __init__(self, allow: AllowList, lookup: Lookup, tls: ssl.SSLContext) -> None:
        self._allow, self._lookup, self._tls = allow, lookup, tls
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[tuple[Any, Any, CheckedNetwork]] = []
        """Origin, connection, and what it was opened by."""

    async def answer(self, request: "httpcore.Request") -> tuple["httpcore.Response", Callable[[], Awaitable[None]]]:
        """What comes to a request, and what to call, once, when its body is read or given up."""
        import httpcore

        try:
            async with asyncio.timeout(request.extensions["timeout"].get("pool")):
                await self._free.acquire()
        except TimeoutError:
            raise httpcore.PoolTimeout(f"{MAX_CONNECTIONS} connections are in use") from None
        try:
            origin, connection, network = await self._taken(request.url.origin)
        except BaseException:
            self._free.release()
            raise
        try:
            found = await connection.handle_async_request(request)
        except BaseException:
            self._free.release()
            await self._close(connection, network)
            raise

        async def leave() -> None:
            self._free.release()
            try:
                await found.aclose()
            finally:
                if connection.is_idle():
                    self._idle.append((origin, connection, network))
                else:
                    await self._close(connection, network)
            if len(self._idle) > MAX_IDLE:
                await self._close(*self._idle.pop(0)[1:])

        return found, leave

    async def aclose(self) -> None:
        """Close those that are kept."""
        while self._idle:
            await self._close(*self._idle.pop()[1:])

    async def _taken(self, origin: "httpcore.Origin") -> tuple[Any, Any, CheckedNetwork]:
        """One that is kept, or a new one."""
        import httpcore

        for place in reversed(range(len(self._idle))):
            if self._idle[place][0] == origin:
                kept = self._idle.pop(place)
                if kept[1].is_available() and not kept[1].has_expired():
                    return kept
                await self._close(*kept[1:])
                break
        network: Any = CheckedNetwork(self._allow, self._lookup)
        made = httpcore.AsyncHTTPConnection(origin, self._tls, keepalive_expiry=IDLE_SECONDS, network_backend=network)
        return origin, made, network

    async def _close(self, connection: Any, network: CheckedNetwork) -> None:
        """In whatever state it was given up."""
        for one in (connection, network.opened):
            with suppress(Exception):
                if one is not None:
                    await one.aclose()


@contextmanager
def as_httpx() -> Iterator[None]:
    """The errors of httpcore as those of httpx, which are named alike."""
    import httpcore
    import httpx

    try:
        yield
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise getattr(httpx, type(error).__name__, httpx.TransportError)(str(error)) from error


def checked_transport(
    allow: AllowList, *, lookup: Lookup = system_lookup, tls: ssl.SSLContext | None = None
) -> "httpx.AsyncBaseTransport":
    """The transport. What may not be reached raises `Refused`; all else fails as httpx fails. Close it on its loop."""
    try:
        import httpcore
        import httpx
    except ImportError as error:
        raise MissingExtra("httpx", "browser", "the text browser") from error

    class Body(httpx.AsyncByteStream):
        """What arrives, with httpx's errors."""

        def __init__(self, stream: Any, leave: Callable[[], Awaitable[None]]) -> None:
            self._stream, self._leave = stream, leave
            self._left = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            with as_httpx():
                async for part in self._stream:
                    yield part

        async def aclose(self) -> None:
            left, self._left = self._left, True
            if not left:
                with as_httpx():
                    await self._leave()

    class Transport(httpx.AsyncBaseTransport):
        """Requests of httpx on checked connections."""

        connections = Connections(allow, lookup, tls or httpx.create_ssl_context(trust_env=False))

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            """One request, to where it says and nowhere else."""
            if request.url.scheme not in ("http", "https"):
                raise Refused(f"addresses begin with http:// or https://, not with {request.url.scheme[:20]}:")
            if request.url.userinfo:
                raise Refused("an address with a user's name or password before the host is not opened")
            url = request.url
            headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
            asked = httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=[(b"Host", url.netloc), *headers],
                content=request.stream,
                extensions={"timeout": request.extensions.get("timeout", {})},  # No name for TLS of its own.
            )
            with as_httpx():
                found, leave = await self.connections.answer(asked)
            return httpx.Response(
                found.status, headers=found.headers, stream=Body(found.stream, leave), extensions=found.extensions
            )

        async def aclose(self) -> None:
            await self.connections.aclose()

    return Transport()
