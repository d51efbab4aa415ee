"""A forward proxy that reaches only what its allow-list allows: the one way out of the real browser.

An episode has a proxy of its own, on a port of 127.0.0.1: `CONNECT` for https and WebSockets, absolute addresses for
plain http. Names are looked up here, and a connection goes to an address that was checked. Deadlines, sizes and numbers
are bounded; what passes a bound is cut. Left out: who may connect to the port; any program of this machine can, and
gets no further than the browser.
"""

import asyncio

from palaestra.envs.browser.network.exchange import Exchange
from palaestra.envs.browser.network.way import CHUNK, Cut, Way
from palaestra.errors import MissingExtra

_LEAVE_SECONDS = 1.0
"""In which a client takes the last words of a connection that is over."""


class FilteringProxy:
    """One allow-list's way out. `start` and `close` on the event loop that it then runs on."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen; the proxy's address."""
        try:
            import h11  # noqa: F401  Its absence should be told before the first request.
        except ImportError as error:
            raise MissingExtra("h11", "chromium", "the proxy of the real browser") from error
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=256)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Cut every connection, and listen no more. May come twice."""
        if self._server is not None:
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
                while await reader.read(CHUNK):  # Closed with unread bytes, it would take the answer back.
                    pass
        except (TimeoutError, OSError, Cut, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._open.discard(task)
