"""A sandbox on another machine, or in another process: everything is asked of `palaestra serve sandbox`.

Names of sessions and requests are made here, so that a request whose answer was lost is sent again and not executed
again. A run that is cancelled here is ended there; of a client that dies the server notices the lost connection, or
that nobody asks any more. Left out: sessions and what they ask (`framed`), asking again (`connection`).
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from palaestra.endpoint.http import Again, Response
from palaestra.endpoint.reply import plain
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.framed import FramedSandbox, Request
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.remote.connection import GRACE, TOKEN_ENV, Connection
from palaestra.envs.sandboxes.remote.messages import CONTENT_TYPE, FRAME_BYTES, unpack
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.runner.wire import HEAD_BYTES, FrameError, Head
from palaestra.envs.sandboxes.streams import CLOSE, SPARE_BYTES, Stream
from palaestra.errors import Broken, UsageError

if TYPE_CHECKING:
    import httpx

_CLOSING = 5.0
"""Seconds in which a server must hear that a session is not wanted any more."""
_REPLACED = 3
"""Bytes that one undecodable byte becomes as text."""
_MOST_NOTES = 64


@dataclass(frozen=True)
class Greeting:
    """What a server says of itself."""

    capabilities: Capabilities
    limits: Limits


class RemoteSandbox(FramedSandbox):
    """A client. It keeps one thread for its connections, whoever asks and from whichever event loop."""

    def __init__(
        self,
        url: str,
        *,
        token_env: str = TOKEN_ENV,
        limits: Limits | Mapping[str, Any] | None = None,
        patience: float = 60.0,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        """`limits` may be as wide as the server's; where none are given they are the usual ones, within those.

        `token_env` names the environment variable that holds the server's token. `patience` is how long a server that
        is full or cannot be reached is asked again. `transport` replaces the network.
        """
        super().__init__()
        self._connection = Connection("remote", url, token_env, patience, CONTENT_TYPE, transport)
        remedy = "`palaestra serve sandbox` starts a server"
        found = self._connection.greet("/v2/capabilities", self._greeted, HEAD_BYTES, remedy)
        self._capabilities = found.capabilities
        try:
            self.limits = found.limits.narrowed(Limits.of(limits, Limits().within(found.limits)))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"RemoteSandbox({self._connection.address})"

    def capabilities(self) -> Capabilities:
        """What the server's backend enforces, by its own account."""
        return self._capabilities

    def close(self) -> None:
        self._connection.close()

    async def _connect(self, limits: Limits, blocking: bool) -> "HttpStream":
        return HttpStream(self._connection)

    async def _alone(self, request: Request[Result], limits: Limits, blocking: bool) -> Result:
        return await request.over(HttpStream(self._connection), blocking)

    def _greeted(self, response: Response) -> Greeting:
        try:
            found = TypeAdapter(Greeting).validate_json(response.body, strict=True)
        except (ValidationError, UsageError):
            raise self._connection.failure(response, "is no sandbox server that this palaestra knows") from None
        notes = tuple(plain(note) for note in found.capabilities.notes[:_MOST_NOTES])
        backend = f"remote {plain(found.capabilities.backend)}"
        return replace(found, capabilities=replace(found.capabilities, backend=backend, notes=notes))


class HttpStream(Stream):
    """A session's requests, one POST each. What is lost on the way is sent again: a failure does not end it."""

    grace = GRACE

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._name = uuid4().hex
        self._dropped = False

    async def exchange(self, frame: bytes, body_bytes: int, seconds: float, blocking: bool) -> tuple[Head, bytes]:
        if len(frame) > FRAME_BYTES:
            raise UsageError(f"{len(frame):,} bytes to send; at most {FRAME_BYTES:,} go at once")
        most = min(_REPLACED * body_bytes, FRAME_BYTES)
        try:
            return await self._post(frame, most, seconds, blocking)
        except (KeyboardInterrupt, asyncio.CancelledError):
            self.drop()
            raise

    async def leave(self, blocking: bool) -> None:
        """Should the server not hear it, its own deadlines remain."""
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
        self, frame: bytes, most: int, seconds: float, blocking: bool, patience: float | None = None
    ) -> tuple[Head, bytes]:
        path, read = f"/v2/{self._name}/{uuid4().hex}", partial(self._read, most)
        return await self._connection.ask(path, frame, read, HEAD_BYTES + most, seconds, blocking, patience)

    def _read(self, most: int, response: Response) -> tuple[Head, bytes]:
        """An answer, or the error that it tells."""
        try:
            head, body = unpack(response.body, most)
        except FrameError:
            raise self._connection.failure(response, "is no sandbox server") from None
        if isinstance(head, bytes) or "error" not in head:
            return head, body
        error = head["error"]
        if not isinstance(error, dict) or not isinstance(error.get("text"), str):
            raise FrameError(f"{response.status} with an error that cannot be read")
        text, kind = self._connection.shown(error["text"]), error.get("kind")
        if kind == "full":
            raise Again(text, response.wait)
        if kind not in ("usage", "os"):
            text = f"{self._connection.address}: {text}"
        return {"error": error | {"text": text}}, b""
