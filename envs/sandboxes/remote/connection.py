"""The connection to a sandbox server, usable with and without an event loop. It retries after temporary failures.

Temporary failures are: no connection, a lost connection, a full server, and a proxy's error page. A request is repeated
for `patience` seconds; then `Broken` is raised. A wrong token raises `UsageError` at once, because every request would
fail. `client` and `fusion` define the messages, and `palaestra.endpoint.http` sends them.
"""

import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.config import Secret, address_of
from palaestra.endpoint.http import HttpClient, Response, RetryableError
from palaestra.endpoint.reply import UnreadableReply, plain
from palaestra.envs.sandboxes.runner.wire import FrameError
from palaestra.envs.sandboxes.sandbox import run_blocking
from palaestra.errors import Broken, ConfigError, SandboxUnavailable, UsageError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
TOKEN_ENV = "PALAESTRA_SANDBOX_TOKEN"
"""Environment variable that holds the token, on both ends."""
PATIENCE_HEADER = "Palaestra-Patience"
"""Header with the seconds for which the client would wait for a free run slot."""
GRACE = 20.0
"""Seconds beyond the timeout of a run in which the server must have answered."""
OPENING = 10.0
"""Seconds in which a server must be reached when a sandbox is opened."""
_FIRST_WAIT = 0.1
_AGAIN = {408, 425, 429, 502, 503, 504}


class SandboxServerConnection:
    """The connection to one server, with one background thread for all requests."""

    def __init__(
        self,
        backend: str,
        url: str,
        token_env: str,
        patience: float,
        content_type: str,
        transport: "httpx.AsyncBaseTransport | None",
    ) -> None:
        if not 0 <= patience < float("inf"):
            raise ConfigError(f"patience is {patience}; expected seconds, 0 or more")
        self.backend, self.patience = backend, patience
        self.address = address_of(url, "url", "http://localhost:8765")
        # The usual variable may be unset: a server on this machine may ask for none.
        self._secret = Secret("" if token_env == TOKEN_ENV and not os.environ.get(token_env) else token_env)
        self._http = HttpClient(
            self.address, self._secret, content_type=content_type, purpose="a remote sandbox", transport=transport
        )
        self.hide_secret = self._http.redacted
        self._background = BackgroundLoop(f"the {backend} sandbox")

    def greet(self, path: str, read: Callable[[Response], T], max_bytes: int, remedy: str) -> T:
        """Send the first request, and raise SandboxUnavailable unless a server answers it correctly."""
        try:
            return run_blocking(self.ask(path, None, read, max_bytes, OPENING, True, min(OPENING, self.patience)))
        except BaseException as error:
            self.close()
            if isinstance(error, Broken):
                raise SandboxUnavailable(self.backend, str(error), [remedy]) from None
            raise

    async def ask(
        self,
        path: str,
        body: bytes | None,
        read: Callable[[Response], T],
        max_bytes: int,
        seconds: float,
        blocking: bool,
        patience: float | None = None,
    ) -> T:
        """Send a request and return what `read` makes of the answer.

        `seconds` is the time that the request usually takes, `max_bytes` the largest body of the answer in bytes.

        If `read` raises `RetryableError`, the request is repeated; if it cannot read the answer, `Broken` is raised.
        """
        patience = self.patience if patience is None else patience
        work = self._ask(path, body, read, max_bytes, seconds, patience)
        return await self._background.outcome(work, patience + seconds + GRACE, blocking)

    def tell(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background, and do not wait for it."""
        with contextlib.suppress(Broken):  # The sandbox is closed: the server will notice.
            self._background.submit(work)

    def close(self) -> None:
        self._background.close(self._http.aclose())

    async def _ask(
        self,
        path: str,
        body: bytes | None,
        read: Callable[[Response], T],
        max_bytes: int,
        seconds: float,
        patience: float,
    ) -> T:
        """Send a request on the background thread, and repeat it after temporary failures."""
        latest = time.monotonic() + patience

        async def attempt() -> T:
            remaining_seconds = max(latest - time.monotonic(), 0.0)
            response = await self._http.send(path, body, max_bytes, {PATIENCE_HEADER: f"{remaining_seconds:.3f}"})
            if response.status in (401, 403):
                problem = "was refused" if self._secret else f"is missing; set {TOKEN_ENV} to the server's"
                raise UsageError(f"{self.address} answered {response.status}: the token {problem}")
            return read(response)

        try:
            return await self._http.retried(attempt, patience, _FIRST_WAIT, seconds=seconds)
        except (UnreadableReply, FrameError) as error:
            raise Broken(f"{self.address} answered {self.hide_secret(str(error))}") from None

    def failure(self, response: Response, what: str) -> RetryableError | Broken:
        """Return the error for an answer that does not come from a sandbox server.

        It is a `RetryableError` if a proxy may have sent the answer, else `Broken`.
        """
        beginning = plain(response.body[:500].decode("utf-8", "replace")) or "nothing"
        description = f"it answered {response.status}: {self.hide_secret(beginning)}"
        if response.status in _AGAIN:
            return RetryableError(description, response.wait)
        return Broken(f"{self.address} {what}; {description}")
