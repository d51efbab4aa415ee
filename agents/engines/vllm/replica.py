"""Client of one vLLM server over HTTP. Each failed request raises `Lost` or `RequestRejected`.

Left out: the choice of a server for a turn, and what to do if a server fails (`fleet`).
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from palaestra.endpoint.config import Secret, address_of
from palaestra.endpoint.http import HttpClient, RetryableError
from palaestra.endpoint.reply import problem_in_page
from palaestra.protocols import PauseMode

CONTROL_SECONDS = 30.0
"""Timeout of a short request, in seconds."""
LOAD_SECONDS = 600.0
"""Timeout of loading new weights, in seconds."""
HEALTH_SECONDS = 5.0
_BODY_BYTES = 2**20
_TOKEN_BYTES = 1024
"""Bytes of an answer for each token: far more than it needs."""


class Lost(Exception):
    """Raised if the server does not answer, or gives no valid answer. It may answer later."""


class RequestRejected(Exception):
    """Raised if a healthy server rejects a request; a retry would be rejected too."""


class Replica:
    """Client of one server. All its methods must be called on one event loop."""

    def __init__(self, url: str, secret: Secret) -> None:
        self.url = address_of(url, "engine.urls", "http://127.0.0.1:8000")
        self._http = HttpClient(self.url, secret, purpose="an engine on a server")
        self.load = 0
        """Count of turns that the server has now."""
        self.ready = False
        """True while the server answers and has the newest weights."""
        self.paused = False
        """True from a pause until the server is resumed."""
        self.lock = asyncio.Lock()
        """Held while its weights change."""
        self.reviving = False
        self.reason = ""
        """Reason why the server is not ready, or ""."""

    async def generate(self, body: Mapping[str, Any], max_tokens: int) -> Any:
        """Request a turn and return the JSON of the answer. There is no timeout for the whole turn."""
        return await self._send("/inference/v1/generate", body, _BODY_BYTES + _TOKEN_BYTES * max_tokens)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = CONTROL_SECONDS) -> Any:
        """Send a request and return its JSON: a GET if `body` is None, otherwise a POST."""
        try:
            async with asyncio.timeout(seconds):
                return await self._send(path, body, _BODY_BYTES)
        except TimeoutError:
            raise Lost(f"{self.url}{path} gave no answer within {seconds:g} s") from None

    async def call(self, method: str, seconds: float, **words: str) -> list[dict[str, Any]]:
        """Run a method of the extension `worker` in each worker process of the server; return the results."""
        reply = await self.ask("/collective_rpc", {"method": method, "kwargs": words}, seconds)
        results = reply.get("results") if isinstance(reply, dict) else None
        if not isinstance(results, list) or not results or not all(isinstance(result, dict) for result in results):
            raise RequestRejected(
                f"{self.url} answered {method} without results; was it started by 'palaestra serve vllm'?"
            )
        for result in results:
            if result.get("error"):
                raise RequestRejected(f"{self.url} could not do {method}: {self._http.redacted(str(result['error']))}")
        return results

    async def abort(self, request: str) -> None:
        """Make the server end the request with this id. It then answers with the tokens sampled so far."""
        await self.ask("/abort_requests", {"request_ids": [f"generate-tokens-{request}"]})

    async def pause(self, mode: PauseMode, seconds: float = CONTROL_SECONDS) -> None:
        """Make the server stop sampling until `resume`."""
        self.paused = True
        await self.ask(f"/pause?mode={mode}", {}, seconds)

    async def resume(self) -> None:
        """End a pause: the server continues to sample."""
        await self.ask("/resume", {})
        self.paused = False

    async def sleep(self) -> None:
        """Make the server end its turns, keep its weights in host memory and free the GPU's. A server without this
        route stays awake.
        """
        self.paused = True
        with suppress(RequestRejected):
            await self.ask("/sleep?level=1&mode=abort", {}, LOAD_SECONDS)

    async def wake_up(self, tag: str = "") -> None:
        """Make the server allocate its memory again, or only the part with this tag. One that is awake does nothing."""
        with suppress(RequestRejected):
            await self.ask(f"/wake_up?tags={tag}" if tag else "/wake_up", {}, LOAD_SECONDS)

    async def renamed(self, tag: str) -> None:
        """Give the server's weights a new name, and drop all caches that older weights computed."""
        await self.ask("/update_weight_version", {"new_version": tag})
        reply = await self.ask("/reset_prefix_cache?reset_running_requests=true", {})
        if not (isinstance(reply, dict) and reply.get("success")):
            raise Lost(f"{self.url} keeps what it computed from older weights")

    async def healthy(self) -> bool:
        """Return whether the server answers."""
        try:
            await self.ask("/health", None, HEALTH_SECONDS)
        except (Lost, RequestRejected) as error:
            self.reason = str(error)
            return False
        return True

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send(self, path: str, body: Mapping[str, Any] | None, max_bytes: int) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            reply = await self._http.send(path, data, max_bytes)
        except RetryableError as again:
            raise Lost(f"{self.url}: {again}") from None
        if 400 <= reply.status < 500 and reply.status not in (408, 429):
            message = self._http.redacted(problem_in_page(reply.body).message)
            raise RequestRejected(f"{self.url}{path} refused with {reply.status}: {message}")
        if reply.status != 200:
            raise Lost(
                f"{self.url}{path} answered {reply.status}: {self._http.redacted(problem_in_page(reply.body).message)}"
            )
        try:
            return json.loads(reply.body) if reply.body.strip() else {}
        except (ValueError, RecursionError):
            raise Lost(f"{self.url}{path} answered something that is not JSON") from None
