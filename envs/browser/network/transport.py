"""A transport for httpx that connects to checked addresses alone: the network of the text browser.

http and https only; the host of each new connection is resolved, checked and connected to in one go, so that no second
look-up can answer otherwise. The name stays in the Host header, in TLS and in the check of the certificate. A client
that uses it follows redirects itself, one request each, so each is checked. Left out: sizes and types of bodies and
cookies, which are the browser's.
"""

import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.envs.browser.network.addresses import Lookup, Refused, system_lookup
from palaestra.envs.browser.network.allow import AllowList
from palaestra.errors import MissingExtra

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
CONNECT_SECONDS = 10.0
"""For looking up and connecting, where a request says nothing of it."""
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
        share = (seconds - (time.monotonic() - begun)) / left  # A dead address leaves time for the others.
        try:
            return await connect(str(address), max(share, 0.001))
        except Exception:
            if left == 1:
                raise
    raise OSError("no address")


class CheckedNetwork:
    """What a pool of httpcore opens connections by (its `AsyncNetworkBackend`): to checked addresses only."""

    def __init__(self, allow: AllowList, lookup: Lookup) -> None:
        import httpcore

        self._allow, self._lookup, self._plain = allow, lookup, httpcore.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, *more: Any, **options: Any) -> Any:
        """Look up, check and connect."""
        import httpcore

        async def connect(address: str, seconds: float) -> Any:
            return await self._plain.connect_tcp(address, port, seconds, *more, **options)

        seconds = CONNECT_SECONDS if timeout is None else timeout
        try:
            return await first_connected(self._allow, host, port, seconds, self._lookup, connect)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(str(error)) from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from None


@contextmanager
def as_httpx() -> Iterator[None]:
    """The errors of the pool as those of httpx, which are named alike."""
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

    network: Any = CheckedNetwork(allow, lookup)

    class Body(httpx.AsyncByteStream):
        """What arrives, with httpx's errors."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            with as_httpx():
                async for part in self._stream:
                    yield part

        async def aclose(self) -> None:
            with as_httpx():
                await self._stream.aclose()

    class Transport(httpx.AsyncBaseTransport):
        """One pool of connections for one allow-list: a connection is never used under another one."""

        def __init__(self) -> None:
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=tls or httpx.create_ssl_context(trust_env=False),
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_IDLE,
                keepalive_expiry=IDLE_SECONDS,
                network_backend=network,
            )

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
                found = await self._pool.handle_async_request(asked)
            return httpx.Response(
                found.status, headers=found.headers, stream=Body(found.stream), extensions=found.extensions
            )

        async def aclose(self) -> None:
            await self._pool.aclose()

    return Transport()
