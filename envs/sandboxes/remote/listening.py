"""Listens on an address for all HTTP servers of palaestra, and limits the number of strangers.

A stranger is a client that has connected, but whose first request has not arrived. A stranger is disconnected after
`HEAD_SECONDS`, and the oldest one at once if there are more than `MAX_STRANGERS`, so that clients with the token can
connect. A refused client is disconnected after the answer. The application checks the token and reports a wrong one by
the statuses 401 and 403.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from palaestra.errors import MissingExtra, UsageError

HEAD_SECONDS = 20.0
"""Seconds in which the TLS handshake and the head of a connection's first request must have arrived."""
MAX_STRANGERS = 256
"""Maximum number of connections from which no head has arrived."""
_ACCEPTED = 32
"""Number of connections to accept before older ones are read again."""
_QUEUED = 512
"""Number of connections that the kernel queues until they are accepted."""
_REFUSALS = (400, 401, 403, 421)
"""Statuses of answers that end the connection."""
_STOPPING = 2
"""Seconds for which running requests may continue when the server stops."""


class _Door(socket.socket):
    """A listening socket that tracks the accepted connections whose first request has not arrived (strangers)."""

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(listening.family, listening.type, fileno=listening.detach())
        self._strangers: dict[tuple[Any, ...], tuple[socket.socket, asyncio.TimerHandle]] = {}

    def listen(self, backlog: int = _QUEUED) -> None:
        """Listen with a queue of `_QUEUED` connections.

        The event loop passes another number: how many it accepts at once.
        """
        super().listen(_QUEUED)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and disconnect the oldest stranger if there are too many."""
        connection, address = super().accept()
        self._known(address)  # An address whose connection has ended may come again.
        timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._cut, address)
        self._strangers[address[:2]] = connection, timer
        if len(self._strangers) > MAX_STRANGERS:
            self._cut(next(iter(self._strangers)))
        return connection, address

    def guarded(self, app: Any) -> Any:
        """Wrap the application: refuse a request with more than one Host header, and disconnect after any refusal."""

        async def guard(scope: Any, receive: Any, send: Any) -> None:
            async def answer(message: Any) -> None:
                if message.get("status") in _REFUSALS:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                await send(message)

            if scope["type"] == "http":
                self._known(scope["client"] or ())
                if sum(name == b"host" for name, _ in scope["headers"]) > 1:
                    await answer({"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"0")]})
                    await answer({"type": "http.response.body"})
                    return
            await app(scope, receive, answer)

        return guard

    def _known(self, address: tuple[Any, ...]) -> socket.socket | None:
        connection, timer = self._strangers.pop(tuple(address[:2]), (None, None))
        if timer is not None:
            timer.cancel()
        return connection

    def _cut(self, address: tuple[Any, ...]) -> None:
        connection = self._known(address)
        if connection is not None:
            with suppress(OSError):  # It has ended by itself.
                connection.shutdown(socket.SHUT_RDWR)


def listen(
    app: Any,
    host: str,
    port: int,
    *,
    connections: int,
    certificate: Path | None = None,
    key: Path | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve an application until SIGINT or SIGTERM. `ready` is called with the address; port 0 means any free port."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve", "serving") from error
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_QUEUED)
    except (OSError, OverflowError) as error:
        raise UsageError(f"{host} port {port} cannot be used: {error}; port 0 takes a free one") from error
    with _Door(listening) as door:
        config = uvicorn.Config(
            door.guarded(app),
            loop="asyncio",  # Other loops do not call the door's `accept`.
            backlog=_ACCEPTED,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws="none",
            lifespan="on",
            limit_concurrency=connections + MAX_STRANGERS + 8 * _ACCEPTED,  # Those just cut off end a little later.
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_STOPPING,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError.
            raise UsageError(f"the certificate {certificate} cannot be used: {error}") from error
        host_text = f"[{host}]" if ":" in host else host
        ready(f"{'https' if certificate else 'http'}://{host_text}:{door.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[door])
