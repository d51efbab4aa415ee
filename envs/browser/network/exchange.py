"""One connection of a browser to its proxy: a request with its answer, or a tunnel.

h11 parses and rewrites every message, so that a second parser cannot find another request in it. Each connection
carries one request, then closes. Not checked: the content of a tunnel between browser and server, whose certificate the
browser checks. Not supported: WebSockets without `CONNECT`, which Chromium does not use.
"""

import asyncio
import html
import itertools
import re
from typing import TYPE_CHECKING, Any

from palaestra.envs.browser.network.addresses import AddressRefused
from palaestra.envs.browser.network.allow import split_port
from palaestra.envs.browser.network.transport import too_small
from palaestra.envs.browser.network.way import CHUNK, Cut, ProxyResponse, Way

if TYPE_CHECKING:
    import h11

_ABSOLUTE = re.compile(r"http://([^/?#]+)([/?].*)?", re.IGNORECASE | re.DOTALL)
_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings", b"expect", b"host"}
"""Headers of one connection, which are not passed on; neither are those that begin with `proxy-`."""
_MAX_EARLY = 10
"""Maximum number of answers of status 1xx before the real one."""


class Exchange:
    """Serves one connection of a browser to the proxy."""

    def __init__(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        self.way, self.limits = way, way.limits
        self._reader, self._writer = reader, writer
        self._client = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes)

    async def run(self) -> None:
        """Serve the connection until it ends. A refused or failed request is answered by a page with the reason."""
        import h11

        counts = self.way.counts
        try:
            async with asyncio.timeout(self.limits.head_seconds):
                request = await self._next_event(self._client, self._reader)
            if not isinstance(request, h11.Request):
                return  # Nothing came.
            await (self._tunnel(request) if request.method == b"CONNECT" else self._forward(request))
        except AddressRefused as refused:
            counts.refused += 1
            self.way.refusals.append(str(refused))
            await self._send_page(403, str(refused))
        except ProxyResponse as answer:
            counts.failed += 1
            await self._send_page(answer.status, str(answer))
        except h11.RemoteProtocolError as error:
            counts.failed += 1
            await self._send_page(400, f"this is not HTTP as it should be: {error}")

    async def _tunnel(self, request: "h11.Request") -> None:
        """Transfer bytes in both directions until both sides have ended, or nothing moves for `idle_seconds`."""
        import h11

        host, port = _place(request.target.decode("latin-1"), None)
        if not isinstance(await self._next_event(self._client, self._reader), h11.EndOfMessage):
            raise ProxyResponse(400, "a CONNECT has no body")
        reader, writer = await self.way.connect(host, port)
        try:
            self.way.counts.allowed += 1
            await self._send_client(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            writer.transport.set_write_buffer_limits(0)
            early, _ = self._client.trailing_data
            async with asyncio.timeout(self.limits.idle_seconds) as quiet:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(self._reader, writer, quiet, early))
                    group.create_task(self._pump(reader, self._writer, quiet, b""))
        except BaseExceptionGroup as group_error:
            raise Cut from group_error
        finally:
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, quiet: asyncio.Timeout, data: bytes
    ) -> None:
        clock = asyncio.get_running_loop().time
        while data or (data := await reader.read(CHUNK)):
            self.way.count_bytes(len(data))
            writer.write(data)
            await writer.drain()
            quiet.reschedule(clock() + self.limits.idle_seconds)
            data = b""
        writer.write_eof()

    async def _forward(self, request: "h11.Request") -> None:
        """Send one plain http request on to its server, and the answer back."""
        import h11

        match = _ABSOLUTE.fullmatch(request.target.decode("latin-1"))
        if match is None:
            raise AddressRefused("only http:// and https:// addresses are opened")
        host, port = _place(match[1], 80)
        path = match[2] or "/"
        path = path if path.startswith("/") else f"/{path}"
        names = [name for name, _ in request.headers]
        if names.count(b"content-length") + names.count(b"transfer-encoding") > 1:
            raise ProxyResponse(400, "the request states its length twice")
        reader, writer = await self.way.connect(host, port)
        try:
            self.way.counts.allowed += 1
            server = h11.Connection(h11.CLIENT, max_incomplete_event_size=self.limits.head_bytes)
            head = [(b"Host", match[1].encode("latin-1")), *_end_to_end(request.headers), (b"Connection", b"close")]
            writer.write(
                server.send(h11.Request(method=request.method, target=path.encode("latin-1"), headers=head)) or b""
            )
            async for part in self._body(self._client, self._reader, self.limits.request_bytes):
                await self._send(writer, server.send(h11.Data(data=part)))
            await self._send(writer, server.send(h11.EndOfMessage()))
            await self._answer(server, reader)
        finally:
            writer.transport.abort()

    async def _answer(self, server: "h11.Connection", reader: asyncio.StreamReader) -> None:
        """Send a server's answer on to the client as it arrives."""
        import h11

        try:
            async with asyncio.timeout(self.limits.idle_seconds):
                for _ in range(_MAX_EARLY):
                    if not isinstance(response := await self._next_event(server, reader), h11.InformationalResponse):
                        break
            if not isinstance(response, h11.Response):
                raise ProxyResponse(502, "the server gave no answer")
        except TimeoutError:
            raise ProxyResponse(504, f"the server gave no answer within {self.limits.idle_seconds:g} s") from None
        except h11.RemoteProtocolError as error:
            raise ProxyResponse(502, f"the server's answer is not HTTP as it should be: {error}") from None
        max_bytes = self.limits.response_bytes
        if any(name == b"content-length" and int(value) > max_bytes for name, value in response.headers):
            raise ProxyResponse(502, f"the answer is larger than {max_bytes} bytes")
        head = [*_end_to_end(response.headers), (b"Connection", b"close")]
        await self._send_client(h11.Response(status_code=response.status_code, headers=head, reason=response.reason))
        try:
            async for part in self._body(server, reader, max_bytes):
                await self._send_client(h11.Data(data=part))
        except (ProxyResponse, h11.RemoteProtocolError):  # The head is sent already: the client must see a cut.
            raise Cut from None
        await self._send_client(h11.EndOfMessage())

    async def _send_page(self, status: int, reason: str) -> None:
        """Send a page of the proxy itself, if no answer has begun yet. Otherwise raise `Cut`."""
        import h11

        if self._client.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise Cut
        page = f"<!doctype html><title>{status}</title><h1>{status}: not opened</h1><p>{html.escape(reason)}</p>"
        head = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(data := page.encode()))}
        head |= {"Connection": "close", "Cache-Control": "no-store"}
        await self._send_client(h11.Response(status_code=status, headers=list(head.items())))
        await self._send_client(h11.Data(data=data))
        await self._send_client(h11.EndOfMessage())

    async def _body(self, connection: "h11.Connection", reader: asyncio.StreamReader, max_bytes: int) -> Any:
        """Yield the parts of a body. Its size and the time between its parts are limited."""
        import h11

        size = 0
        for count in itertools.count():
            async with asyncio.timeout(self.limits.idle_seconds):
                event = await self._next_event(connection, reader)
                await asyncio.sleep(0)  # Data that has already arrived would block all other connections.
            if not isinstance(event, h11.Data):
                return
            size += len(event.data)
            self.way.count_bytes(len(event.data))
            if size > max_bytes or too_small(count, size):
                raise ProxyResponse(413, f"the body is larger than {max_bytes} bytes, or comes in too small parts")
            yield bytes(event.data)

    async def _next_event(self, connection: "h11.Connection", reader: asyncio.StreamReader) -> Any:
        """Return the next h11 event of one side of the connection; wait until its data has arrived."""
        import h11

        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(CHUNK))
        return event

    async def _send_client(self, event: Any) -> None:
        await self._send(self._writer, self._client.send(event))

    async def _send(self, writer: asyncio.StreamWriter, data: bytes | None) -> None:
        async with asyncio.timeout(self.limits.idle_seconds):
            writer.write(data or b"")
            await writer.drain()


def _place(authority: str, default: int | None) -> tuple[str, int]:
    """Return host and port from an address's host part. Without a port: `default`, or an error if that is None."""
    if "@" in authority:
        raise AddressRefused("an address with a user's name or password before the host is not opened")
    try:
        host, (port,) = split_port(authority, () if default is None else (default,))
    except ValueError:
        raise AddressRefused(f"{authority[:100]!r} is no host with a port") from None
    return host.lower(), port


def _end_to_end(headers: Any) -> list[tuple[bytes, bytes]]:
    """Return the headers to pass on: without those of one connection, which `_HOP` or the Connection header lists."""
    hops = {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
    dropped = _HOP | (hops - {b"content-length", b"transfer-encoding"})
    return [(name, value) for name, value in headers if name not in dropped and not name.startswith(b"proxy-")]
