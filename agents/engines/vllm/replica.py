"""One vLLM server over HTTP. Every request has a timeout, and every failure is raised as `Lost` or `RequestRejected`.

Left out: the choice of a server, and what happens without it (`fleet`).
"""

import asyncio
import json
from collections.abc import Mapping
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
    """Raised if the server does not answer, or answers wrongly. It may come back."""


class RequestRejected(Exception):
    """Raised if a healthy server rejects a request; a retry would be rejected too."""


class Replica:
    """A client of one server, for use on one event loop."""

    def __init__(self, url: str, secret: Secret) -> None:
        self.url = address_of(url, "engine.urls", "http://127.0.0.1:8000")
        self._http = HttpClient(self.url, secret, purpose="an engine on a server")
        self.load = 0
        """Count of turns that the server has now."""
        self.ready = False
        """True while the server answers and has the newest weights."""
        self.lock = asyncio.Lock()
        """Held while its weights change."""
        self.reviving = False
        self.reason = ""
        """Reason why the server is not ready, or ""."""

    async def generate(self, body: Mapping[str, Any], max_tokens: int) -> Any:
        """Return the JSON of a turn; without a timeout."""
        return await self._send("/inference/v1/generate", body, _BODY_BYTES + _TOKEN_BYTES * max_tokens)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = CONTROL_SECONDS) -> Any:
        """Send a request and return its JSON: a GET if `body` is None, otherwise a POST."""
        try:
            async with asyncio.timeout(seconds):
                return await self._send(path, body, _BODY_BYTES)
        except TimeoutError:
            raise Lost(f"{self.url}{path} gave no answer within {seconds:g} s") from None

    async def call(self, method: str, seconds: float, **words: str) -> list[dict[str, Any]]:
        """Run a method of `worker` in each of the server's workers; return the results."""
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
        """End a turn; the server then answers it at once."""
        await self.ask("/abort_requests", {"request_ids": [f"generate-tokens-{request}"]})

    async def pause(self, mode: PauseMode, seconds: float = CONTROL_SECONDS) -> None:
        """Stop sampling."""
        await self.ask(f"/pause?mode={mode}", {}, seconds)

    async def resume(self) -> None:
        """Sample again."""
        await self.ask("/resume", {})

    async def renamed(self, tag: str) -> None:
        """Set the name of the server's weights, and drop all caches of older weights."""
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
