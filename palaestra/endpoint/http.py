"""Requests to one server over HTTP, with maximum sizes and retries, for endpoints and remote sandboxes.

A body is read only up to its maximum size. A compressed body is refused, since it may become a thousand times as large.
Redirects are not followed, cookies are not stored, and no proxy is used to reach this machine; httpx
sends the requests where the environment names a proxy. A temporary failure
raises `RetryableError`. The key goes into one header and is shown nowhere. Left out: the meaning of the messages, and
how long one try may take.
"""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from palaestra.endpoint.config import Secret
from palaestra.endpoint.connection import ServerConnections, reason_of
from palaestra.endpoint.reply import plain
from palaestra.errors import Broken, MissingExtra, UsageError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
_Kinds = type[Exception] | tuple[type[Exception], ...]
RETRY_AFTER_CAP = 60.0
"""Maximum seconds for which a server's Retry-After can delay the next try."""
BACKOFF_CAP = 20.0
_POOL = 1
"""Requests at once on one pool of connections: the work of httpcore's pool grows with their square."""
PAGE_BYTES = 64 * 2**10
"""Bytes of a refusal's body that are read for its message."""


class RetryableError(Exception):
    """Raised for a failed try that may succeed if repeated."""

    def __init__(self, reason: str, wait: float | None = None, *, costly: bool = False, tls: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        """Seconds to wait that the server asked for; None if it asked for none."""
        self.costly = costly
        """True if the server accepted the request, and answered wrongly or not at all."""
        self.tls = tls
        """True if no secure connection with this server is possible."""


class Response(NamedTuple):
    """A response of any status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def wait(self) -> float | None:
        """Seconds in its Retry-After header; None if there is none."""
        return seconds_of(self.headers.get("retry-after"))


@dataclass(slots=True, eq=False)
class _Pool:
    """A pool of connections and the number of its running requests."""

    client: "httpx.AsyncClient"
    busy: int = 0


class HttpClient:
    """Client of one server. All calls, and closing it, must run on the event loop of the first call."""

    def __init__(
        self,
        address: str,
        secret: Secret,
        *,
        content_type: str = "application/json",
        connect_seconds: float = 5.0,
        keep: int | None = None,
        purpose: str,
        size_option: str = "",
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """`keep`: idle connections kept open, None for all. `purpose` is part of the error for a missing library.

        `size_option` names the option that allows larger answers. `transport` replaces the network.
        """
        try:
            import httpx  # noqa: F401  (its absence is reported before the first request)
        except ImportError as error:
            raise MissingExtra("httpx", "endpoint", purpose) from error
        self.address, self.secret = address, secret
        self._headers = {"Accept-Encoding": "identity", "Content-Type": content_type} | secret.header()
        self._connect_seconds, self._keep, self._transport = connect_seconds, keep, transport
        self._too_large = f"its answer is larger than {size_option}{', ' * bool(size_option)}"
        self._pools: list[_Pool] = []
        self._parts = urlsplit(address)
        host = self._parts.hostname or ""
        self._local = host in ("localhost", "::1") or host.startswith("127.")  # No proxy for this machine.
        self._direct = transport is None and (self._local or not getproxies())
        self._connections = ServerConnections(address, keep, self._tls_context)
        self._tls: ssl.SSLContext | None = None
        self._jitter = random.Random()
        self.trouble = ""
        """Reason why the last try of any request failed; empty if it succeeded."""

    def redacted(self, text: str) -> str:
        """Return a server's text without the key, on one line and of bounded length."""
        return plain(self.secret.hide(text))

    async def send(
        self, path: str, body: bytes | None, max_bytes: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send one request, a GET if `body` is None, and read at most `max_bytes` bytes of the answer.

        Raise `RetryableError` if it fails.
        """
        method = "GET" if body is None else "POST"
        if self._direct:
            return await self._send_directly(method, path, body or b"", max_bytes, headers or {})
        import httpx

        pool = self._pool()
        pool.busy += 1
        try:
            async with pool.client.stream(method, self.address + path, content=body, headers=headers) as response:
                data = await self._read(response.status_code, response.headers, response.aiter_raw(), max_bytes)
                return Response(response.status_code, response.headers, data)
        except httpx.TransportError as error:
            raise self._failure(error, httpx.TimeoutException, httpx.ConnectError) from None
        finally:
            pool.busy -= 1

    async def _send_directly(
        self, method: str, path: str, body: bytes, max_bytes: int, headers: Mapping[str, str]
    ) -> Response:
        """Send one request on a connection of our own."""
        import h11

        try:
            async with asyncio.timeout(self._connect_seconds) as deadline:
                connection = await self._connections.take()
        except OSError as error:  # A TimeoutError is one.
            raise self._failure(error, TimeoutError if deadline.expired() else (), OSError) from None
        length = {"Content-Length": str(len(body))} if method == "POST" else {}
        sent = {"Host": self._parts.netloc, "Accept": "*/*", **self._headers, **headers, **length}
        try:
            status, received = await connection.ask(method, self._parts.path + path, sent, body)
            data = await self._read(status, received, connection.body(), max_bytes)
        except (OSError, h11.RemoteProtocolError) as error:
            connection.close()
            raise self._failure(error) from None
        except BaseException:  # A cancelled request leaves a half-read answer: the connection is of no use.
            connection.close()
            raise
        self._connections.give(connection)
        return Response(status, received, data)

    def _failure(self, error: Exception, late: _Kinds = (), unconnected: _Kinds = ()) -> RetryableError:
        """Return what is raised for a failed connection: too `late`, never made, or lost."""
        reason, tls = reason_of(error)
        if isinstance(error, late):
            return RetryableError(f"no connection within {self._connect_seconds:g} s")
        what = "no connection" if isinstance(error, unconnected) else "the connection failed"
        return RetryableError(f"{what}: {self.redacted(reason)}", tls=tls)

    async def retried(
        self,
        attempt: Callable[[], Awaitable[T]],
        patience: float,
        first_wait: float,
        *,
        seconds: float | None = None,
        hopeless: Callable[[RetryableError, bool], bool] = lambda again, over: again.costly,
        place: Callable[[bool], Awaitable[None]] | None = None,
    ) -> T:
        """Repeat `attempt` until it succeeds, for `patience` seconds after the first failure; then raise `Broken`.

        All tries together may take `patience` + `seconds`. `hopeless(again, over)` is called after each failure: True
        ends the tries at once. Each try waits for `place`, called with whether it is a repetition; that is no failure,
        so it does not count as patience.
        """
        tries, failed_at, limit = 0, 0.0, None if seconds is None else patience + seconds
        try:
            async with asyncio.timeout(limit) as deadline:
                while True:
                    if place is not None:
                        began = time.monotonic()
                        await place(tries > 0)
                        failed_at += (time.monotonic() - began) * bool(failed_at)
                    tries += 1
                    try:
                        outcome = await attempt()
                        self.trouble = ""
                        return outcome
                    except RetryableError as again:
                        self.trouble = str(again)
                        now = time.monotonic()
                        failed_at = failed_at or now
                        left = failed_at + patience - now
                        if hopeless(again, left <= 0) or left <= 0:
                            raise Broken(
                                f"{self.address} gave no answer in {tries} tries over {now - failed_at:.1f} s: {again}"
                            ) from None
                        wait = min(first_wait * 2 ** min(tries - 1, 16), BACKOFF_CAP) * self._jitter.uniform(0.5, 1.0)
                        # The last try comes when the patience ends, not before.
                        await asyncio.sleep(min(wait if again.wait is None else again.wait + wait * 0.1, left))
        except TimeoutError:
            if not deadline.expired():  # It is the attempt's own timeout.
                raise
            raise Broken(f"{self.address} gave no answer within {limit:g} s") from None

    async def aclose(self) -> None:
        """Close the connections."""
        self._connections.close()
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.client.aclose()

    def _pool(self) -> _Pool:
        """Return the first pool that can take a request, so that few connections stay open, or else a new pool."""
        free = next((pool for pool in self._pools if pool.busy < _POOL or self._transport is not None), None)
        if free is None:
            free = _Pool(self._made())
            self._pools.append(free)
        return free

    def _made(self) -> "httpx.AsyncClient":
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._keep, keepalive_expiry=30.0)
        try:
            tls = self._tls_context() if self._transport is None else None
            return httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(None, connect=self._connect_seconds),
                limits=limits,
                verify=tls or True,
                trust_env=not self._local,
                follow_redirects=False,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                transport=self._transport,
            )
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(
                f"the proxy or certificate settings of the environment are unusable: {self.redacted(str(error))}"
            ) from None

    def _tls_context(self) -> ssl.SSLContext:
        import httpx

        if self._tls is None:  # Once: to read the certificates takes a while.
            self._tls = httpx.create_ssl_context()
        return self._tls

    async def _read(
        self, status: int, headers: Mapping[str, str], parts: AsyncIterator[bytes], max_bytes: int
    ) -> bytes:
        """Return the raw body. Raise `RetryableError` if it is too large; of a refusal's body, return the beginning."""
        refused = status >= 300
        if headers.get("content-encoding", "identity") != "identity":
            if refused:
                return b""
            raise RetryableError("it answered a compressed body, which was not asked for", costly=True)
        data = bytearray()
        async for part in parts:
            data += part
            if refused and len(data) > PAGE_BYTES:
                return bytes(data[:PAGE_BYTES])
            if len(data) > max_bytes:
                raise RetryableError(f"{self._too_large}{max_bytes} bytes", costly=True)
        return bytes(data)


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds in a Retry-After header (a number or date), at most the cap; None if it is invalid."""
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), RETRY_AFTER_CAP) if seconds == seconds else None
