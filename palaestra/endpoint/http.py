"""One server over HTTP: bounded requests, and trying again. What endpoints and remote sandboxes share.

No body is read beyond its largest size, none is taken compressed (it may be a thousand times as large), no redirect is
followed, no cookie kept, no proxy asked for this machine. Trouble that may pass is `Again`. The key goes into one
header and is shown nowhere. Left out: what the messages mean, and how long one try may take.
"""

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit

from palaestra.endpoint.config import Secret
from palaestra.endpoint.reply import plain
from palaestra.errors import Broken, MissingExtra, UsageError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
RETRY_AFTER_CAP = 60.0
"""Seconds that a server may ask us to wait before the next try."""
BACKOFF_CAP = 20.0
_POOL = 1
"""Requests at once on one pool of connections: the work of httpcore's grows with the square of them."""
PAGE_BYTES = 64 * 2**10
"""Of a refusal's body: its message is read from them."""


class Again(Exception):
    """A try that failed, perhaps only for now."""

    def __init__(self, reason: str, wait: float | None = None, *, costly: bool = False, tls: bool = False) -> None:
        super().__init__(reason)
        self.wait = wait
        """What the server asked for, in seconds."""
        self.costly = costly
        """The server took the request, and answered wrongly or not at all."""
        self.tls = tls
        """No secure connection with this server is possible."""


class Response(NamedTuple):
    """What came back, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def wait(self) -> float | None:
        """What its Retry-After asks for."""
        return seconds_of(self.headers.get("retry-after"))


@dataclass(slots=True, eq=False)
class _Pool:
    """Some connections, and how many requests they carry."""

    client: "httpx.AsyncClient"
    busy: int = 0


class HttpClient:
    """A server. All of it happens on the event loop that first asks; close it there."""

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
        """`keep`: connections kept open, None for all. `purpose` is told with a missing library.

        `size_option` is what a user sets to have larger answers. `transport` replaces the network.
        """
        try:
            import httpx  # noqa: F401  (its absence should be told before the first request)
        except ImportError as error:
            raise MissingExtra("httpx", "endpoint", purpose) from error
        self.address, self.secret = address, secret
        self._headers = {"Accept-Encoding": "identity", "Content-Type": content_type} | secret.header()
        self._connect_seconds, self._keep, self._transport = connect_seconds, keep, transport
        self._too_large = f"its answer is larger than {size_option}{', ' * bool(size_option)}"
        self._pools: list[_Pool] = []
        self._tls: ssl.SSLContext | None = None
        self._jitter = random.Random()

    def shown(self, text: str) -> str:
        """A server's words without the key, on one line, bounded."""
        return plain(self.secret.hide(text))

    async def send(
        self, path: str, body: bytes | None, most: int, headers: Mapping[str, str] | None = None
    ) -> Response:
        """One request, a GET without a body; `most` is the largest body of an answer. `Again` where there is none."""
        import httpx

        method, url = "GET" if body is None else "POST", self.address + path
        pool = self._pool()
        pool.busy += 1
        try:
            async with pool.client.stream(method, url, content=body, headers=headers) as response:
                return Response(response.status_code, response.headers, await self._read(response, most))
        except httpx.TransportError as error:
            reason, tls = _reason(error)
            if isinstance(error, httpx.TimeoutException):
                raise Again(f"no connection within {self._connect_seconds:g} s") from None
            what = "no connection" if isinstance(error, httpx.ConnectError) else "the connection failed"
            raise Again(f"{what}: {self.shown(reason)}", tls=tls) from None
        finally:
            pool.busy -= 1

    async def retried(
        self,
        attempt: Callable[[], Awaitable[T]],
        patience: float,
        first_wait: float,
        *,
        seconds: float | None = None,
        hopeless: Callable[[Again, bool], bool] = lambda again, over: again.costly,
    ) -> T:
        """Try until it goes well, for `patience` seconds after the first failure; then `Broken`.

        `seconds` more may pass in all. `hopeless(again, over)` is asked after each failure: True ends it at once.
        """
        tries, failed_at, limit = 0, 0.0, None if seconds is None else patience + seconds
        try:
            async with asyncio.timeout(limit) as deadline:
                while True:
                    tries += 1
                    try:
                        return await attempt()
                    except Again as again:
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
            if not deadline.expired():  # It is the attempt's own.
                raise
            raise Broken(f"{self.address} gave no answer within {limit:g} s") from None

    async def aclose(self) -> None:
        """Close the connections."""
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.client.aclose()

    def _pool(self) -> _Pool:
        """The first pool with room, so that few connections are kept; made on the loop that uses it."""
        free = next((pool for pool in self._pools if pool.busy < _POOL or self._transport is not None), None)
        if free is None:
            free = _Pool(self._made())
            self._pools.append(free)
        return free

    def _made(self) -> "httpx.AsyncClient":
        import httpx

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._keep, keepalive_expiry=30.0)
        transport, host = self._transport, urlsplit(self.address).hostname or ""
        try:
            if transport is None and self._tls is None:
                self._tls = httpx.create_ssl_context()  # Once: to read the certificates takes a while.
            tls = self._tls or True
            if transport is None and (host in ("localhost", "::1") or host.startswith("127.")):
                transport = httpx.AsyncHTTPTransport(verify=tls, limits=limits)  # Not by a proxy of the environment.
            return httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(None, connect=self._connect_seconds),
                limits=limits,
                verify=tls,
                follow_redirects=False,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                transport=transport,
            )
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(
                f"the proxy or certificate settings of the environment are unusable: {self.shown(str(error))}"
            ) from None

    async def _read(self, response: "httpx.Response", most: int) -> bytes:
        """The body as it came, up to the limit; the beginning of a refusal's."""
        refused = response.status_code >= 300
        if response.headers.get("content-encoding", "identity") != "identity":
            if refused:
                return b""
            raise Again("it answered a compressed body, which was not asked for", costly=True)
        data = bytearray()
        async for part in response.aiter_raw():
            data += part
            if refused and len(data) > PAGE_BYTES:
                return bytes(data[:PAGE_BYTES])
            if len(data) > most:
                raise Again(f"{self._too_large}{most} bytes", costly=True)
        return bytes(data)


def seconds_of(retry_after: str | None) -> float | None:
    """What a Retry-After header asks for, in seconds or as a date, within its cap; None where it says nothing."""
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


def _reason(error: BaseException) -> tuple[str, bool]:
    """The innermost words of a failed connection, and whether TLS will not work with this server at all."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.exceptions[0] if isinstance(link, BaseExceptionGroup) else link.__cause__ or link.__context__
    # Its other subclasses say that a connection ended or that more is to come, not that it cannot be.
    tls = any(type(one) in (ssl.SSLError, ssl.SSLCertVerificationError) for one in chain)
    words = [f"{type(one).__name__}: {one}" for one in chain if str(one)]
    return (words[-1] if words else type(error).__name__), tls
