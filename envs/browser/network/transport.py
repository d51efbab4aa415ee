"""A transport for httpx that connects only to checked addresses: the network of the text browser.

Only http and https. For each new connection, the host is looked up, checked and connected to in one step, so that no
second look-up can give another address. The name stays in the Host header, in TLS and in the check of the certificate.
The client must follow redirects itself, with one request for each, so that each is checked. Not here: the browser
checks sizes and types of bodies, and cookies.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.envs.browser.network.addresses import AddressLookup, AddressRefused, Unreached, system_lookup
from palaestra.envs.browser.network.allow import AllowList, authority
from palaestra.errors import MissingExtra, ToolError

if TYPE_CHECKING:
    import httpcore
    import httpx

T = TypeVar("T")
CONNECT_SECONDS = 10.0
"""Maximum seconds for looking up and connecting."""
CONNECT_SHARE = 0.8
"""Share of a request's timeout for looking up and connecting, so that the connection fails before the request."""
_MAX_REASON = 200
FIRST_SECONDS = 2.0
"""Seconds for one address if there is another one to try."""
MAX_CONNECTIONS = 256
MAX_IDLE = 32
"""Maximum number of idle connections that are kept for the next request."""
IDLE_SECONDS = 15.0
_SMALL, _SMALL_PARTS = 16, 1000


def too_small(parts: int, size: int) -> bool:
    """Return whether a body comes in too small parts, because each part costs time.

    This is a body of more than `_SMALL_PARTS` parts with at most about `_SMALL` bytes each on average.
    """
    return parts > _SMALL_PARTS + size // _SMALL


async def first_connected(
    allow: AllowList,
    host: str,
    port: int,
    seconds: float,
    lookup: AddressLookup,
    connect: Callable[[str, float], Awaitable[T]],
) -> T:
    """Connect to the first checked address of a host that answers.

    Raise `AddressRefused` if the host is not allowed, and `Unreached` if no address answers. Raise a plain ToolError if
    fewer than FIRST_SECONDS were given and they ran out.
    """
    start = time.monotonic()
    try:
        addresses = await allow.addresses(host, port, seconds, lookup)
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            share = seconds - (time.monotonic() - start)
            if left > 1:  # A dead address must leave time for the others.
                share = min(share / left, FIRST_SECONDS)
            try:
                return await connect(str(address), max(share, 0.001))
            except Exception:
                if left == 1:
                    raise
        raise OSError("no address")
    except AddressRefused:
        raise
    except Exception as error:
        reason = str(error)[:_MAX_REASON] or f"no answer within {seconds:g} s"
        message = f"{authority(host, port)} was not reached: {reason}"
        if seconds < FIRST_SECONDS and time.monotonic() - start >= seconds:
            raise ToolError(message) from error  # The last moments of the agent's budget prove nothing about a service.
        place = (host.lower(), port)
        raise Unreached(message, place, place in allow.services) from error


class CheckedNetwork:
    """The network backend of a httpcore connection (`AsyncNetworkBackend`), for checked addresses only."""

    def __init__(self, allow: AllowList, lookup: AddressLookup) -> None:
        import httpcore

        self._allow, self._lookup, self._plain = allow, lookup, httpcore.AnyIOBackend()
        self.opened: Any = None

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, *more: Any, **options: Any) -> Any:
        """Look the host up, check its addresses, and connect."""

        async def connect(address: str, seconds: float) -> Any:
            return await self._plain.connect_tcp(address, port, seconds, *more, **options)

        seconds = CONNECT_SECONDS if timeout is None else min(CONNECT_SECONDS, CONNECT_SHARE * timeout)
        self.opened = await first_connected(self._allow, host, port, seconds, self._lookup, connect)
        return self.opened


class Connections:
    """Connections for one allow-list, never used for another. Idle ones are kept for a while; their number is limited.

    httpcore's own pool is not used, because it loses a connection for ever if a request is cancelled at the wrong
    moment.
    """

    def __init__(self, allow: AllowList, lookup: AddressLookup, tls: ssl.SSLContext) -> None:
        self._allow, self._lookup, self._tls = allow, lookup, tls
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[tuple[Any, Any, CheckedNetwork]] = []
        """Origin, connection, and its network backend."""

    async def answer(self, request: "httpcore.Request") -> tuple["httpcore.Response", Callable[[], Awaitable[None]]]:
        """Return the response to a request, and a function. Call it once, when the body is read or not needed."""
        import httpcore

        try:
            async with asyncio.timeout(request.extensions["timeout"].get("pool")):
                await self._free.acquire()
        except TimeoutError:
            raise httpcore.PoolTimeout(f"{MAX_CONNECTIONS} connections are in use") from None
        try:
            origin, connection, network = await self._take(request.url.origin)
        except BaseException:
            self._free.release()
            raise
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            self._free.release()
            await self._close(connection, network)
            raise

        async def leave() -> None:
            self._free.release()
            try:
                await response.aclose()
            finally:
                if connection.is_idle():
                    self._idle.append((origin, connection, network))
                else:
                    await self._close(connection, network)
            if len(self._idle) > MAX_IDLE:
                await self._close(*self._idle.pop(0)[1:])

        return response, leave

    async def aclose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._close(*self._idle.pop()[1:])

    async def _take(self, origin: "httpcore.Origin") -> tuple[Any, Any, CheckedNetwork]:
        """Return an idle connection to this origin, or a new one."""
        import httpcore

        for place in reversed(range(len(self._idle))):
            if self._idle[place][0] == origin:
                entry = self._idle.pop(place)
                if entry[1].is_available() and not entry[1].has_expired():
                    return entry
                await self._close(*entry[1:])
                break
        network: Any = CheckedNetwork(self._allow, self._lookup)
        new = httpcore.AsyncHTTPConnection(origin, self._tls, keepalive_expiry=IDLE_SECONDS, network_backend=network)
        return origin, new, network

    async def _close(self, connection: Any, network: CheckedNetwork) -> None:
        """Close a connection and its stream, in any state."""
        for resource in (connection, network.opened):
            with suppress(Exception):
                if resource is not None:
                    await resource.aclose()


@contextmanager
def as_httpx() -> Iterator[None]:
    """Convert errors of httpcore to the errors of httpx with the same names."""
    import httpcore
    import httpx

    try:
        yield
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        raise getattr(httpx, type(error).__name__, httpx.TransportError)(str(error)) from error


def core_request(request: "httpx.Request") -> "httpcore.Request":
    """Return the request for httpcore. Its Host header always names the host of its address.

    Raise `AddressRefused` for an address that is not http or https, or that contains a user's name or password.
    """
    import httpcore

    if request.url.scheme not in ("http", "https"):
        raise AddressRefused(f"addresses begin with http:// or https://, not with {request.url.scheme[:20]}:")
    if request.url.userinfo:
        raise AddressRefused("an address with a user's name or password before the host is not opened")
    url = request.url
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
    return httpcore.Request(
        request.method,
        httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=[(b"Host", url.netloc), *headers],
        content=request.stream,
        extensions={"timeout": request.extensions.get("timeout", {})},  # No other name for TLS.
    )


def checked_transport(
    allow: AllowList, *, lookup: AddressLookup = system_lookup, tls: ssl.SSLContext | None = None
) -> "httpx.AsyncBaseTransport":
    """Return a transport of httpx that connects only to checked addresses. Close it on its event loop.

    It raises `AddressRefused` or `Unreached` if it cannot connect, and httpx's own errors for other failures.
    """
    try:
        import httpcore
        import httpx
    except ImportError as error:
        raise MissingExtra("httpx", "browser", "the text browser") from error

    class Body(httpx.AsyncByteStream):
        """The body of a response. Its errors are converted to httpx's errors."""

        def __init__(self, stream: Any, leave: Callable[[], Awaitable[None]]) -> None:
            self._stream, self._leave = stream, leave
            self._left = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            parts = size = 0
            with as_httpx():
                async for part in self._stream:
                    parts, size = parts + 1, size + len(part)
                    if too_small(parts, size):
                        raise httpcore.RemoteProtocolError("its body comes in too small parts")
                    yield part
                    await asyncio.sleep(0)  # Data that has already arrived would block all other work.

        async def aclose(self) -> None:
            left, self._left = self._left, True
            if not left:
                with as_httpx():
                    await self._leave()

    class Transport(httpx.AsyncBaseTransport):
        """Sends requests of httpx on checked connections."""

        connections = Connections(allow, lookup, tls or httpx.create_ssl_context(trust_env=False))

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            """Send one request on a connection to its own host."""
            outgoing = core_request(request)
            with as_httpx():
                reply, leave = await self.connections.answer(outgoing)
            return httpx.Response(
                reply.status, headers=reply.headers, stream=Body(reply.stream, leave), extensions=reply.extensions
            )

        async def aclose(self) -> None:
            await self.connections.aclose()

    return Transport()
