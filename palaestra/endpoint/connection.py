"""One HTTP/1.1 connection to a server, for one request at a time.

A request costs about a tenth of the CPU of httpx's pool, which matters where hundreds are under way at once: one loop
has to send the last before the first is answered. h11 reads and checks the messages. Left out: proxies, redirects and
cookies (`http` uses httpx where the environment names a proxy), timeouts of the whole request, and what comes in.
"""

import asyncio
import select
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

_IDLE_SECONDS = 30.0
"""Seconds after which an idle connection is not used again: its server may close it at any moment."""
_HEAD_BYTES = 100 * 2**10
"""Maximum bytes of a response's status line and headers."""
_PART_BYTES = 2**16


class Connection:
    """An open connection. Close it after a request that did not end well."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        self._reader, self._writer = reader, writer
        self._messages = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._used = time.monotonic()
        self._answered = False
        """True if a part of the response to the last request has come."""

    @classmethod
    async def opened(cls, host: str, port: int, tls: ssl.SSLContext | None) -> "Connection":
        """Connect. Raise an OSError if that is not possible."""
        return cls(*await asyncio.open_connection(host, port, ssl=tls))

    @property
    def reusable(self) -> bool:
        """True if another request can be sent: the last one ended, and the server has not closed the connection."""
        import h11

        if not (self._messages.our_state is h11.IDLE and self._messages.their_state is h11.IDLE):
            return False
        if self._reader.at_eof() or self._writer.is_closing() or time.monotonic() - self._used >= _IDLE_SECONDS:
            return False
        # What can be read between two requests is the end, which the loop may not have noticed yet.
        ended = select.poll()
        ended.register(self._writer.get_extra_info("socket").fileno(), select.POLLIN)
        return not ended.poll(0)

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str]]:
        """Send a request. Return the status of the response, and its headers by their names in lower case."""
        import h11

        request = h11.Request(method=method, target=target, headers=list(headers.items()))
        self._answered = False
        parts = (request, h11.Data(data=body), h11.EndOfMessage()) if body else (request, h11.EndOfMessage())
        self._writer.write(b"".join(self._messages.send(part) or b"" for part in parts))
        with suppress(ConnectionError):  # The server may have refused the rest, and its answer says why.
            await self._writer.drain()
        response = await self._event()
        while isinstance(response, h11.InformationalResponse):
            response = await self._event()
        assert isinstance(response, h11.Response), "h11 gives a response before its body"
        pairs = ((name.decode("ascii"), value.decode("latin-1")) for name, value in response.headers)
        return response.status_code, dict(pairs)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the parts of the response's body."""
        import h11

        while isinstance(part := await self._event(), h11.Data):
            yield bytes(part.data)
        self._used = time.monotonic()
        if self._messages.our_state is h11.DONE and self._messages.their_state is h11.DONE:
            self._messages.start_next_cycle()

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def _event(self) -> object:
        import h11

        while (event := self._messages.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_PART_BYTES)
            if not (data or self._answered):
                raise ConnectionResetError("it closed the connection without an answer")
            self._answered = True
            self._messages.receive_data(data)
        return event


class ServerConnections:
    """The connections to one server."""

    def __init__(self, address: str, keep: int | None, tls: Callable[[], ssl.SSLContext]) -> None:
        """`keep` is the maximum number of idle connections; None keeps all. `tls` is called for an https address."""
        self._parts, self._keep, self._tls = urlsplit(address), keep, tls
        self._idle: list[Connection] = []
        """Open connections without a request, the last one used at the end."""

    async def take(self) -> Connection:
        """Return an idle connection, or else a new one. Raise an OSError if there can be none."""
        while self._idle:
            if (connection := self._idle.pop()).reusable:
                return connection
            connection.close()
        secure = self._parts.scheme == "https"
        port = self._parts.port or (443 if secure else 80)
        return await Connection.opened(self._parts.hostname or "", port, self._tls() if secure else None)

    def give(self, connection: Connection) -> None:
        """Keep a connection whose request has ended well for the next one."""
        if connection.reusable and (self._keep is None or len(self._idle) < self._keep):
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop().close()


def reason_of(error: BaseException) -> tuple[str, bool]:
    """Return the innermost message of a failed connection, and whether TLS is impossible with this server."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.exceptions[0] if isinstance(link, BaseExceptionGroup) else link.__cause__ or link.__context__
    # Its other subclasses say that a connection ended or that more is to come, not that it cannot be.
    tls = any(type(link_error) in (ssl.SSLError, ssl.SSLCertVerificationError) for link_error in chain)
    words = [f"{type(link_error).__name__}: {link_error}" for link_error in chain if str(link_error)]
    return (words[-1] if words else type(error).__name__), tls
