"""A sandbox that `palaestra serve sandbox` provides, on another machine or in another process.

The client gives each session and each request a name. So it can send a request again if the answer was lost, and the
server does not execute it twice. If a run is cancelled in the client, the server ends it. If a client dies, the server
notices that the connection is lost or that no requests arrive. `framed` defines sessions and requests; `connection`
repeats requests.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from palaestra.endpoint.http import Response, RetryableError
from palaestra.endpoint.reply import plain
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.framed import FramedSandbox, FrameRequest
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.remote.connection import GRACE, TOKEN_ENV, SandboxServerConnection
from palaestra.envs.sandboxes.remote.messages import CONTENT_TYPE, FRAME_BYTES, unpack
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.runner.wire import HEAD_BYTES, FrameError, FrameHead
from palaestra.envs.sandboxes.streams import CLOSE, SPARE_BYTES, Stream
from palaestra.errors import Broken, UsageError

if TYPE_CHECKING:
    import httpx

_CLOSING = 5.0
"""Seconds in which a server must learn that a session is not needed any more."""
_REPLACED = 3
"""Number of bytes that replace one undecodable byte in text."""
_MOST_NOTES = 64


@dataclass(frozen=True)
class Greeting:
    """Capabilities and limits that a server reports."""

    capabilities: Capabilities
    limits: Limits


class RemoteSandbox(FramedSandbox):
    """Client of a sandbox server. One background thread makes its requests for all threads and event loops."""

    def __init__(
        self,
        url: str,
        *,
        token_env: str = TOKEN_ENV,
        limits: Limits | Mapping[str, Any] | None = None,
        patience: float = 60.0,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """`limits` may not be higher than the server's. None means the default limits, each at most the server's.

        `token_env` names the environment variable that holds the server's token. `patience` is the number of seconds
        for which requests to a full or unreachable server are repeated. `transport` replaces the network.
        """
        super().__init__()
        self._connection = SandboxServerConnection("remote", url, token_env, patience, CONTENT_TYPE, transport)
        remedy = "`palaestra serve sandbox` starts a server"
        greeting = self._connection.greet("/v2/capabilities", self._greeted, HEAD_BYTES, remedy)
        self._capabilities = greeting.capabilities
        try:
            self.limits = greeting.limits.narrowed(Limits.of(limits, Limits().within(greeting.limits)))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"RemoteSandbox({self._connection.address})"

    def capabilities(self) -> Capabilities:
        """Return the guards that the server reports for its backend."""
        return self._capabilities

    def close(self) -> None:
        self._connection.close()

    async def _connect(self, limits: Limits, blocking: bool) -> "HttpStream":
        return HttpStream(self._connection)

    async def _alone(self, request: FrameRequest[Result], limits: Limits, blocking: bool) -> Result:
        return await request.over(HttpStream(self._connection), blocking)

    def _greeted(self, response: Response) -> Greeting:
        try:
            greeting = TypeAdapter(Greeting).validate_json(response.body, strict=True)
        except (ValidationError, UsageError):
            raise self._connection.failure(response, "is no sandbox server that this palaestra knows") from None
        notes = tuple(plain(note) for note in greeting.capabilities.notes[:_MOST_NOTES])
        backend = f"remote {plain(greeting.capabilities.backend)}"
        return replace(greeting, capabilities=replace(greeting.capabilities, backend=backend, notes=notes))


class HttpStream(Stream):
    """A stream that sends each request as one HTTP POST.

    Lost requests are sent again, so a failure does not end the session.
    """

    grace = GRACE

    def __init__(self, connection: SandboxServerConnection) -> None:
        self._connection = connection
        self._name = uuid4().hex
        self._dropped = False

    async def exchange(self, frame: bytes, body_bytes: int, seconds: float, blocking: bool) -> tuple[FrameHead, bytes]:
        if len(frame) > FRAME_BYTES:
            raise UsageError(f"{len(frame):,} bytes to send; at most {FRAME_BYTES:,} go at once")
        max_bytes = min(_REPLACED * body_bytes, FRAME_BYTES)
        try:
            return await self._post(frame, max_bytes, seconds, blocking)
        except (KeyboardInterrupt, asyncio.CancelledError):
            self.drop()
            raise

    async def leave(self, blocking: bool) -> None:
        """Ask the server to end the session. If the request is lost, the deadlines of the server end it."""
        if not self._dropped:
            self._dropped = True
            await self._end(blocking)

    def drop(self) -> None:
        if not self._dropped:
            self._dropped = True
            self._connection.tell(self._end(False))

    def forget(self) -> None:
        self._dropped = True

    def beside(self) -> "HttpStream":
        return HttpStream(self._connection)

    async def _end(self, blocking: bool) -> None:
        with contextlib.suppress(Broken, UsageError, OSError):
            await self._post(CLOSE, SPARE_BYTES, _CLOSING / 2, blocking, _CLOSING / 2)

    async def _post(
        self, frame: bytes, max_bytes: int, seconds: float, blocking: bool, patience: float | None = None
    ) -> tuple[FrameHead, bytes]:
        path, read = f"/v2/{self._name}/{uuid4().hex}", partial(self._read, max_bytes)
        return await self._connection.ask(path, frame, read, HEAD_BYTES + max_bytes, seconds, blocking, patience)

    def _read(self, max_bytes: int, response: Response) -> tuple[FrameHead, bytes]:
        """Return the frame in an answer.

        An error is returned as a header, or raised as RetryableError if the server is full.
        """
        try:
            head, body = unpack(response.body, max_bytes)
        except FrameError:
            raise self._connection.failure(response, "is no sandbox server") from None
        if isinstance(head, bytes) or "error" not in head:
            return head, body
        error = head["error"]
        if not isinstance(error, dict) or not isinstance(error.get("text"), str):
            raise FrameError(f"{response.status} with an error that cannot be read")
        text, kind = self._connection.hide_secret(error["text"]), error.get("kind")
        if kind == "full":
            raise RetryableError(text, response.wait)
        if kind not in ("usage", "os"):
            text = f"{self._connection.address}: {text}"
        return {"error": error | {"text": text}}, b""
