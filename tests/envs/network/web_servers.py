"""Servers on loopback that count what arrives, answer as a test tells them, and may speak TLS as `ok.test`."""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Behaviour = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PAIR = """\
-----BEGIN CERTIFICATE-----
MIIBPDCB4qADAgECAgEBMAoGCCqGSM49BAMCMBIxEDAOBgNVBAMMB29rLnRlc3Qw
IBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBIxEDAOBgNVBAMMB29r
LnRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATOMjTyHrzq6LpaxoaJ48YA
ZuaoAoLYi56ZuYNjt3NZuM5JpInmeyksUXiz88EcaYIW9KI0cWfi0SXFdsKPg0Ol
oycwJTASBgNVHREECzAJggdvay50ZXN0MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI
zj0EAwIDSQAwRgIhAKcRpyYJcuAonzF+XyqddHOBCupobcq+xs25g5ODwanKAiEA
mCgvHtrdnWRjk2iSdjMq7uHwkyHXunZDHpPNYl7kdMY=
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgadopppyiZ7XzJ+VJ
h4VdyEuBQV0fGgFml0KHyTEpSJChRANCAATOMjTyHrzq6LpaxoaJ48YAZuaoAoLY
i56ZuYNjt3NZuM5JpInmeyksUXiz88EcaYIW9KI0cWfi0SXFdsKPg0Ol
-----END PRIVATE KEY-----
"""
"""A certificate for ok.test alone, signed by itself, and its key. Made for tests; it protects nothing."""


def server_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(PAIR)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def client_tls() -> ssl.SSLContext:
    """Trusts that certificate, and checks names as always."""
    return ssl.create_default_context(cadata=PAIR.partition("-----BEGIN PRIVATE")[0])


class Server:
    """One port; `heads` are the requests that arrived, `connections` counts those that were opened."""

    def __init__(self, behave: Behaviour | None) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._behave = behave or self._echo
        self._tasks: set[asyncio.Task[None]] = set()

    async def _echo(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n" + head)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            await self._behave(head, reader, writer)
            await writer.drain()
            if not writer.can_write_eof():  # TLS
                writer.close()
                await writer.wait_closed()
            else:
                writer.write_eof()
                while await reader.read(65536):
                    pass
        writer.transport.abort()
        self._tasks.discard(task)

    async def leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def serving(behave: Behaviour | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server while the block lasts: it echoes the request's head, or does as `behave` says after each head."""
    server = Server(behave)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        await asyncio.sleep(0.01)  # asyncio would lose the socket of a connection accepted just before `close`.
        listening.close()
        await server.leave()
