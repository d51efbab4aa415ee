"""One sandbox server as its client sees it: an operation goes out as often as needed, and is executed once.

An answer is a result or an error of the kinds that every backend has; whatever else comes back is `Broken`. Left out:
sessions (`client`), HTTP (`exchange`), the form of messages (`wire`).
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from palaestra.endpoint.reply import Unreadable
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.remote.exchange import Again, Exchange, beginning, retry_after
from palaestra.envs.sandboxes.remote.wire import (
    BODY_BYTES,
    HEADER_BYTES,
    PROTOCOL,
    count_of,
    pack,
    read_capabilities,
    read_limits,
    text_of,
    unpack,
)
from palaestra.errors import Broken, UsageError

GRACE = 20.0
"""Seconds beyond a run's own in which the server must have answered."""
OPENING = 10.0
"""Seconds in which a server must be reached when a sandbox is opened."""
_CLOSING = 5.0
_SMALL = HEADER_BYTES + 64 * 2**10


class Service:
    """Operations of one server. All of it happens on one event loop."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    async def greet(self) -> tuple[Capabilities, Limits]:
        """What the server's backend enforces, and its limits."""

        async def attempt() -> dict[str, Any]:
            return self._judge(*await self.exchange.post("/v1/capabilities", None, _SMALL))[0]

        patience = min(OPENING, self.exchange.patience)
        try:
            header = await self.exchange.patiently(attempt, "the first question", OPENING, patience)
            if count_of(header, "protocol", 1000) != PROTOCOL:
                raise UsageError(f"{self.exchange.address} speaks protocol {header['protocol']}; expected {PROTOCOL}")
            limits = read_limits(header)
            if limits is None:
                raise Unreadable("no limits")
            return read_capabilities(header), limits
        except Unreadable as error:
            raise self.lied(error) from None

    async def ask(
        self, operation: str, header: Mapping[str, Any], body: bytes = b"", *, seconds: float = GRACE, most: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        """One operation. `seconds` is what it takes when all is well, `most` the largest body of its answer."""
        if len(body) > BODY_BYTES:
            raise UsageError(f"{operation}: {len(body):,} bytes to send; at most {BODY_BYTES:,} go at once")
        began, patience = time.monotonic(), self.exchange.patience
        named = {"request": uuid4().hex, **header}

        async def attempt() -> tuple[dict[str, Any], bytes]:
            left = max(patience - (time.monotonic() - began), 0.0)
            data = pack(named | {"patience": left}, body)
            return self._judge(*await self.exchange.post(f"/v1/{operation}", data, _SMALL + min(most, BODY_BYTES)))

        try:
            return await self.exchange.patiently(attempt, operation, seconds)
        except Unreadable as error:
            raise self.lied(error) from None

    async def end(self, session: str) -> None:
        """Tell the server that a session is not wanted any more. Should it not hear, its own deadlines remain."""
        with contextlib.suppress(Broken, UsageError, OSError):
            async with asyncio.timeout(_CLOSING):
                await self.ask("close", {"session": session}, seconds=_CLOSING)

    def lied(self, error: Unreadable) -> Broken:
        """A server whose answers are none has failed."""
        return Broken(f"{self.exchange.address} answered {self.exchange.shown(str(error))}")

    def _judge(self, status: int, headers: Mapping[str, str], data: bytes) -> tuple[dict[str, Any], bytes]:
        """An answer, or the error that it tells."""
        try:
            header, body = unpack(data)
        except Unreadable as unreadable:
            told = f"it answered {status}: {self.exchange.shown(beginning(data))}"
            if status in (408, 425, 429) or status >= 500:  # A proxy's, perhaps.
                raise Again(told, retry_after(headers)) from None
            raise Broken(f"{self.exchange.address} is no sandbox server; {told} ({unreadable})") from None
        error = header.get("error")
        if error is None and status == 200:
            return header, body
        if not isinstance(error, dict):
            raise Unreadable(f"status {status} with an error of the wrong type")
        text, kind = self.exchange.shown(text_of(error, "text", HEADER_BYTES)), error.get("kind")
        if kind == "full":
            raise Again(text, retry_after(headers))
        if kind == "usage":
            raise UsageError(text)
        if kind == "os":
            path = error.get("path")
            raise OSError(count_of(error, "errno", 4095), text, *[path] * isinstance(path, str))
        raise Broken(f"{self.exchange.address}: {text}")
