"""A forward proxy that reaches only what its allow-list allows: the only network access of Chromium.

Each episode has a separate proxy, on a port of 127.0.0.1: `CONNECT` for https and WebSockets, absolute addresses for
plain http. The proxy looks names up, checks each address, and connects to that address. Times, sizes and numbers are
limited; above a limit, a connection is cut. Not checked: who connects to the port. Any program of this computer can,
but it reaches no more than the browser.
"""

import asyncio

from palaestra.envs.browser.network.exchange import Exchange
from palaestra.envs.browser.network.way import CHUNK, Cut, Way
from palaestra.errors import MissingExtra

_LEAVE_SECONDS = 1.0
"""Seconds for a client to read the last bytes of a connection that is over."""


class FilteringProxy:
    """A proxy for one allow-list. Call `start` and `close` on the event loop that it runs on."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen, and return the proxy's address."""
        try:
            import h11  # noqa: F401  A missing package is reported before the first request.
        except ImportError as error:
            raise MissingExtra("h11", "chromium", "the proxy of the real browser") from error
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=256)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Cut every connection, and stop listening. It may be called twice."""
        if self._server is not None:
            await asyncio.sleep(0.001)  # asyncio would lose the socket of a connection accepted just before `close`.
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= self.way.limits.connections:
            writer.transport.abort()
            return
        self._open.add(task)
        writer.transport.set_write_buffer_limits(0)  # A drain then waits until all is sent.
        try:
            async with asyncio.timeout(self.way.limits.connection_seconds):
                await Exchange(self.way, reader, writer).run()
            async with asyncio.timeout(_LEAVE_SECONDS):
                await writer.drain()
                writer.write_eof()
                while await reader.read(CHUNK):  # Closing with unread bytes would lose the answer.
                    pass
        except (TimeoutError, OSError, Cut, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._open.discard(task)
