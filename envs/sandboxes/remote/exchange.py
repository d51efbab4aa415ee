"""The client's half of HTTP: asks, waits no longer than it should, asks again, and believes nothing unread.

Trouble that may pass (no connection, one that was lost, a full server, a proxy's error page) is tried again for
`patience` seconds; what is left of it then is `Broken`. A wrong token is a `UsageError`, since every request would meet
it. No try outlives its deadline, however slowly bytes trickle in; no body is read beyond its largest size. The token
goes into one header and is shown nowhere. Left out: what the messages mean (`client`, `fusion`).
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, TypeVar

from palaestra.endpoint.config import Secret, address_of, is_loopback
from palaestra.endpoint.reply import plain
from palaestra.envs.sandboxes.remote.wire import TOKEN_ENV
from palaestra.errors import Broken, ConfigError, MissingExtra, UsageError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
CONNECT_SECONDS = 5.0
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
_LONGEST_ASKED_WAIT = 30.0
"""Seconds that a server may ask us to wait before the next try."""
_PAGE_BYTES = 64 * 2**10
"""Of a body that is no answer: enough to tell what it says."""


class Again(Exception):
    """A try that failed, perhaps only for now."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = min(max(wait, 0.0), _LONGEST_ASKED_WAIT)


class Exchange:
    """One server. All of it happens on one event loop, and it is closed there."""

    def __init__(
        self,
        url: str,
        token_env: str,
        content_type: str,
        patience: float,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("httpx", "endpoint", "a remote sandbox") from error
        if not 0 <= patience < float("inf"):
            raise ConfigError(f"patience is {patience}; expected seconds, 0 or more")
        self.address = address_of(url, "url", "http://localhost:8765")
        self.patience = patience
        # The usual variable may be unset: a server on this machine may ask for none.
        self._secret = Secret("" if token_env == TOKEN_ENV and not os.environ.get(token_env) else token_env)
        self._content_type = content_type
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._jitter = random.Random()

    def __repr__(self) -> str:
        return f"Exchange({self.address})"

    def shown(self, text: str) -> str:
        """A server's words without the token, on one line, bounded."""
        return plain(self._secret.hide(text))

    async def patiently(
        self, attempt: Callable[[], Awaitable[T]], what: str, seconds: float, patience: float | None = None
    ) -> T:
        """Try until it goes well. `seconds` is what it takes when all is well, `patience` what trouble may last."""
        patience = self.patience if patience is None else patience
        ends = time.monotonic() + patience + seconds
        failed_at, tries = 0.0, 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout(max(ends - time.monotonic(), 0.001)):
                    return await attempt()
            except Again as again:
                now = time.monotonic()
                failed_at = failed_at or now
                left = min(failed_at + patience, ends) - now
                if left <= 0:
                    raise Broken(
                        f"{self.address}: {what} failed in {tries} tries over {now - failed_at:.1f} s: {again}"
                    ) from None
                wait = min(_FIRST_WAIT * 2 ** min(tries - 1, 16), _LONGEST_WAIT) * self._jitter.uniform(0.5, 1.0)
                await asyncio.sleep(min(max(wait, again.wait), left))
            except TimeoutError:
                raise Broken(f"{self.address}: no answer to {what} within {patience + seconds:g} s") from None

    async def post(self, path: str, data: bytes | None, most: int) -> tuple[int, Mapping[str, str], bytes]:
        """One request: its status, headers and body. Without data it is a GET."""
        import httpx

        try:
            async with self._open().stream(
                "GET" if data is None else "POST", self.address + path, content=data
            ) as response:
                body = await _read(response, most)
                status, headers = response.status_code, response.headers
        except httpx.TransportError as error:
            what = "no connection" if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else "it was lost"
            raise Again(f"{what}: {self.shown(_innermost(error))}") from None
        if status in (401, 403):
            told = "was refused" if self._secret else f"is missing; set {TOKEN_ENV} to the server's"
            raise UsageError(f"{self.address} answered {status}: the token {told}")
        return status, headers, body

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _open(self) -> "httpx.AsyncClient":
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
            transport = self._transport
            if transport is None and is_loopback(self.address):  # Proxies of the environment are none for this machine.
                transport = httpx.AsyncHTTPTransport(limits=limits)
            try:
                self._client = httpx.AsyncClient(
                    headers={"Accept-Encoding": "identity", "Content-Type": self._content_type} | self._secret.header(),
                    timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
                    limits=limits,
                    follow_redirects=False,
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                    transport=transport,
                )
            except (OSError, ValueError, ImportError) as error:
                raise UsageError(f"the proxy or certificate settings are unusable: {self.shown(str(error))}") from None
        return self._client


def retry_after(headers: Mapping[str, str]) -> float:
    """What the header asks for in seconds; 0 where it says nothing. Dates are not read."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < float("inf") else 0.0


async def _read(response: "httpx.Response", most: int) -> bytes:
    """The body as it came. A compressed one is refused: it may be a thousand times as large."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Broken("the server answered a compressed body, which was not asked for")
    data = bytearray()
    async for part in response.aiter_raw():
        data += part
        if len(data) > most:
            if response.status_code >= 400:
                return bytes(data[:_PAGE_BYTES])
            raise Broken(f"the server's answer is larger than the {most:,} bytes that it may have")
    return bytes(data)


def _innermost(error: BaseException) -> str:
    """The first cause of a failed connection that has words."""
    words, seen, link = [], 0, error
    cause: BaseException | None = link
    while cause is not None and seen < 10:
        words.append(f"{type(cause).__name__}: {cause}" if str(cause) else "")
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__
        seen += 1
    return next((text for text in reversed(words) if text), type(error).__name__)


def beginning(body: bytes) -> str:
    """The beginning of what came instead of an answer."""
    return plain(body[:500].decode("utf-8", "replace")) or "nothing"
