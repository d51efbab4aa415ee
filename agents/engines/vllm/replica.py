"""One vLLM server over HTTP. Every question has a deadline, and whatever is wrong with it is a `Lost` or a `Refused`.

Left out: which server is asked, and what is done without it (`fleet`).
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from palaestra.endpoint.config import Secret, address_of
from palaestra.endpoint.http import Again, HttpClient
from palaestra.endpoint.reply import problem_in_page
from palaestra.protocols import PauseMode

CONTROL_SECONDS = 30.0
"""For a question that takes a moment."""
LOAD_SECONDS = 600.0
"""For taking new weights."""
HEALTH_SECONDS = 5.0
_BODY_BYTES = 2**20
_TOKEN_BYTES = 1024
"""Of an answer, a token: far more than it takes."""


class Lost(Exception):
    """No answer, or one that shows that the server is not as it should be. It may come back."""


class Refused(Exception):
    """The server is well, and will not do this however often it is asked."""


class Replica:
    """A server. All of it happens on one event loop."""

    def __init__(self, url: str, secret: Secret) -> None:
        self.url = address_of(url, "engine.urls", "http://127.0.0.1:8000")
        self._http = HttpClient(self.url, secret, purpose="an engine on a server")
        self.load = 0
        """Turns that it has now."""
        self.ready = False
        """True while it answers, and from the newest weights."""
        self.lock = asyncio.Lock()
        """Held while its weights change."""
        self.reviving = False
        self.reason = ""
        """Why it is not ready."""

    async def generate(self, body: Mapping[str, Any], max_tokens: int) -> Any:
        """A turn, however long it takes."""
        return await self._send("/inference/v1/generate", body, _BODY_BYTES + _TOKEN_BYTES * max_tokens)

    async def ask(self, path: str, body: Mapping[str, Any] | None = None, seconds: float = CONTROL_SECONDS) -> Any:
        """A question that is answered in JSON. A GET where there is nothing to say; `{}` makes it a POST."""
        try:
            async with asyncio.timeout(seconds):
                return await self._send(path, body, _BODY_BYTES)
        except TimeoutError:
            raise Lost(f"{self.url}{path} gave no answer within {seconds:g} s") from None

    async def call(self, method: str, seconds: float, **words: str) -> list[dict[str, Any]]:
        """Have each of its workers run a method of `worker`."""
        found = await self.ask("/collective_rpc", {"method": method, "kwargs": words}, seconds)
        results = found.get("results") if isinstance(found, dict) else None
        if not isinstance(results, list) or not results or not all(isinstance(one, dict) for one in results):
            raise Refused(f"{self.url} answered {method} without results; was it started by 'palaestra serve vllm'?")
        for one in results:
            if one.get("error"):
                raise Refused(f"{self.url} could not do {method}: {self._http.shown(str(one['error']))}")
        return results

    async def abort(self, request: str) -> None:
        """End a turn; its answer then comes at once."""
        await self.ask("/abort_requests", {"request_ids": [f"generate-tokens-{request}"]})

    async def pause(self, mode: PauseMode, seconds: float = CONTROL_SECONDS) -> None:
        """Stop sampling."""
        await self.ask(f"/pause?mode={mode}", {}, seconds)

    async def resume(self) -> None:
        """Sample again."""
        await self.ask("/resume", {})

    async def renamed(self, tag: str) -> None:
        """Say what its weights are called now, and drop all that was computed from others."""
        await self.ask("/update_weight_version", {"new_version": tag})
        found = await self.ask("/reset_prefix_cache?reset_running_requests=true", {})
        if not (isinstance(found, dict) and found.get("success")):
            raise Lost(f"{self.url} keeps what it computed from older weights")

    async def healthy(self) -> bool:
        """Whether it answers."""
        try:
            await self.ask("/health", None, HEALTH_SECONDS)
        except (Lost, Refused) as error:
            self.reason = str(error)
            return False
        return True

    async def aclose(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def _send(self, path: str, body: Mapping[str, Any] | None, most: int) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            found = await self._http.send(path, data, most)
        except Again as again:
            raise Lost(f"{self.url}: {again}") from None
        if 400 <= found.status < 500 and found.status not in (408, 429):
            said = self._http.shown(problem_in_page(found.body).message)
            raise Refused(f"{self.url}{path} refused with {found.status}: {said}")
        if found.status != 200:
            raise Lost(
                f"{self.url}{path} answered {found.status}: {self._http.shown(problem_in_page(found.body).message)}"
            )
        try:
            return json.loads(found.body) if found.body.strip() else {}
        except (ValueError, RecursionError):
            raise Lost(f"{self.url}{path} answered something that is not JSON") from None
