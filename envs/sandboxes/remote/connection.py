"""The connection to a server of sandboxes: asked from plain code and from any loop, and again where trouble may pass.

Trouble that may pass (no connection, one that was lost, a full server, a proxy's error page) is tried again for
`patience` seconds; what is left of it then is `Broken`. A wrong token is a `UsageError`, since every request would meet
it. Left out: what the messages mean (`client`, `fusion`), and HTTP (`palaestra.endpoint.http`).
"""

import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.config import Secret, address_of
from palaestra.endpoint.http import Again, HttpClient, Response
from palaestra.endpoint.reply import Unreadable, plain
from palaestra.envs.sandboxes.runner.wire import FrameError
from palaestra.envs.sandboxes.sandbox import run_blocking
from palaestra.errors import Broken, ConfigError, SandboxUnavailable, UsageError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
TOKEN_ENV = "PALAESTRA_SANDBOX_TOKEN"
"""Environment variable that holds the token, on both ends."""
PATIENCE_HEADER = "Palaestra-Patience"
"""How long the client would wait for a place where its program can run, in seconds."""
GRACE = 20.0
"""Seconds beyond a run's own in which the server must have answered."""
OPENING = 10.0
"""Seconds in which a server must be reached when a sandbox is opened."""
_FIRST_WAIT = 0.1
_AGAIN = {408, 425, 429, 502, 503, 504}


class Connection:
    """A server, and a thread for the requests to it, whoever makes them."""

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
        self.shown = self._http.shown
        self._background = BackgroundLoop(f"the {backend} sandbox")

    def greet(self, path: str, read: Callable[[Response], T], most: int, remedy: str) -> T:
        """The first question; SandboxUnavailable where nobody answers it as a server would."""
        patience = min(OPENING, self.patience)
        try:
            work = self._ask(path, None, read, most, OPENING, patience)
            return run_blocking(self._background.outcome(work, 2 * OPENING + GRACE, True))
        except BaseException as error:
            self.close()
            if isinstance(error, Broken):
                raise SandboxUnavailable(self.backend, str(error), [remedy]) from None
            raise

    async def ask(
        self,
        path: str,
        body: bytes,
        read: Callable[[Response], T],
        most: int,
        seconds: float,
        blocking: bool,
        patience: float | None = None,
    ) -> T:
        """One question. `seconds` is what it takes when all is well, `most` the largest body of its answer.

        `read` may raise `Again`; what it cannot read is `Broken`.
        """
        patience = self.patience if patience is None else patience
        work = self._ask(path, body, read, most, seconds, patience)
        return await self._background.outcome(work, patience + seconds + GRACE, blocking)

    def tell(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this when there is time; nobody waits for it."""
        with contextlib.suppress(Broken):  # The sandbox is closed: the server will notice.
            self._background.submit(work)

    def close(self) -> None:
        self._background.close(self._http.aclose())

    async def _ask(
        self, path: str, body: bytes | None, read: Callable[[Response], T], most: int, seconds: float, patience: float
    ) -> T:
        """On the thread of the loop."""
        latest = time.monotonic() + patience

        async def attempt() -> T:
            left = max(latest - time.monotonic(), 0.0)
            response = await self._http.send(path, body, most, {PATIENCE_HEADER: f"{left:.3f}"})
            if response.status in (401, 403):
                found = "was refused" if self._secret else f"is missing; set {TOKEN_ENV} to the server's"
                raise UsageError(f"{self.address} answered {response.status}: the token {found}")
            return read(response)

        try:
            return await self._http.retried(attempt, patience, _FIRST_WAIT, seconds=seconds)
        except (Unreadable, FrameError) as error:
            raise Broken(f"{self.address} answered {self.shown(str(error))}") from None

    def failure(self, response: Response, what: str) -> Again | Broken:
        """The error for what is no answer of such a server: `Again` where it may be a proxy's page."""
        beginning = plain(response.body[:500].decode("utf-8", "replace")) or "nothing"
        found = f"it answered {response.status}: {self.shown(beginning)}"
        if response.status in _AGAIN:
            return Again(found, response.wait)
        return Broken(f"{self.address} {what}; {found}")
