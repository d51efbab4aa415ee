"""One connection with an MCP server: a program that we start and talk to over its pipes, or an address.

The SDK (2.x) wants a connection opened and closed by one task, so each has a task of its own on a loop of its own, for
episodes are played from many threads and loops. It opens with the first question. A server's program runs behind
`envs.running.leash` and ends with us, however we end. Left out: what tools are to an agent (`mcp`).
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from palaestra.endpoint.background import BackgroundLoop
from palaestra.endpoint.config import Secret, address_of
from palaestra.envs.running import leash
from palaestra.envs.running.lifetime import close_at_exit
from palaestra.errors import Broken, ToolError, UsageError

START_SECONDS = 60.0
"""In which a server must start and tell its tools."""
CLOSE_SECONDS = 8.0
GRACE_SECONDS = 5.0
"""After the deadline of a call that the SDK keeps, ours."""
MAX_PAGES = 50
_CLOSED = "Connection closed"
"""What the SDK says of a connection that ended."""
_LISTENS = 20
_SHOWN = 500


@dataclass(frozen=True, slots=True)
class McpServer:
    """Where a server is."""

    command: tuple[str, ...] = ()
    """The program and its arguments; or none, and an address."""
    url: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the program's environment, beside PATH, HOME and the like."""
    folder: str | None = None
    """Where the program runs."""
    token_env: str = ""
    """Environment variable whose value is sent to the address as a bearer token."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise UsageError("an MCP server is a command or a url; expected one of them: tools_from_mcp(['npx', ...])")
        if self.url:
            address_of(self.url, "url", "http://localhost:8000/mcp")

    def __str__(self) -> str:
        return f"the MCP server {self.url or ' '.join(self.command)[:200]!r}"


class McpSession:
    """A connection. Its methods may be used from any thread or loop."""

    def __init__(self, server: McpServer, stateful: bool) -> None:
        """`stateful`: over HTTP, by the handshake that gives a session of one's own, which newer protocols lack."""
        self.server, self.stateful = server, stateful
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._said: IO[bytes] | None = None

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        """The result of a tool: a ToolError where the server refuses the call, Broken where it is gone."""
        work = self._call(name, arguments, seconds)
        return await _loop.current.outcome(work, START_SECONDS + seconds + 2 * GRACE_SECONDS, blocking=False)

    def tools(self) -> list[Any]:
        """The server's tools, as the SDK gives them. It is a UsageError that there are none to be had."""
        return _loop.current.submit(self._tools()).result(2 * START_SECONDS)

    def close(self) -> None:
        """End the connection, and the program with it."""
        if self._task is not None:
            with suppress(Broken, TimeoutError):  # The loop has ended, and all of its connections with it.
                _loop.current.submit(self._close()).result(CLOSE_SECONDS + GRACE_SECONDS)

    # On the loop.

    async def _call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        from mcp.shared.exceptions import MCPError

        try:
            client = await self._connected()
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                return await client.call_tool(name, dict(arguments), read_timeout_seconds=seconds)
        except MCPError as error:
            if error.message != _CLOSED:  # Its number alone is that of other errors, too.
                raise ToolError(error.message[:_SHOWN]) from None
            why = await self._why(error)
            await self._close()  # Whoever shares it has another one next time.
            raise Broken(f"{self.server} is gone: {why}") from None
        except Broken:
            raise
        except TimeoutError:
            raise Broken(f"{self.server} did not even take the call within {seconds + GRACE_SECONDS:g} s") from None
        except Exception as error:
            if isinstance(error, RuntimeError | ValueError) and self._task is not None and not self._task.done():
                raise ToolError(f"the server's answer cannot be read: {str(error)[:_SHOWN]}") from None
            raise Broken(f"{self.server} failed: {await self._why(error)}") from error

    async def _tools(self) -> list[Any]:
        try:
            client = await self._connected()
            async with asyncio.timeout(START_SECONDS):
                found, cursor = [], None
                for _ in range(MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    found += page.tools
                    if not (cursor := page.next_cursor):
                        break
                return found
        except Broken as error:
            raise UsageError(str(error)) from None
        except Exception as error:
            raise UsageError(f"{self.server} does not tell its tools: {await self._why(error)}") from error

    async def _connected(self) -> Any:
        """The SDK's client; whoever comes first opens it, and the others wait."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:  # That of before a fork.
            self._stop = asyncio.Event()
            self._client = loop.create_future()
            self._task = loop.create_task(self._live(self._client, self._stop))
        try:
            async with asyncio.timeout(START_SECONDS):
                return await asyncio.shield(self._client)
        except TimeoutError:
            self._task.cancel()
            raise Broken(f"{self.server} did not start within {START_SECONDS:g} s") from None

    async def _live(self, client: "asyncio.Future[Any]", stop: asyncio.Event) -> None:
        """The task of a connection, from its first message to its last."""
        try:
            async with AsyncExitStack() as stack:
                opened = await self._open(stack)
                if not client.done():
                    client.set_result(opened)
                await stop.wait()
        except BaseException as error:
            if not client.done():
                client.set_exception(Broken(f"{self.server} does not start: {await self._why(error)}"))
                client.exception()  # Looked at, should nobody wait any more.
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            if self._said is not None:
                self._said.close()

    async def _open(self, stack: AsyncExitStack) -> Any:
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        server, transport = self.server, None
        if server.command:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed when all is told)
            program = str(Path(leash.__file__).resolve())
            started = StdioServerParameters(
                command=sys.executable,
                args=["-I", "-S", program, str(os.getpid()), *server.command],
                env=dict(server.variables),
                cwd=server.folder,
            )
            transport = stdio_client(started, errlog=self._said)  # type: ignore[arg-type]  # a file with a descriptor
        else:
            secret = Secret(server.token_env)
            http = await stack.enter_async_context(create_mcp_http_client(headers=secret.header()))
            transport = streamable_http_client(server.url, http_client=http)
        mode = "legacy" if self.stateful and server.url else "auto"
        return await stack.enter_async_context(Client(transport, mode=mode, cache=None))

    async def _close(self) -> None:
        if self._task is None or self._stop is None:
            return
        self._stop.set()
        _, left = await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        for task in left:
            task.cancel()
        self._task = None

    async def _why(self, error: BaseException) -> str:
        """The innermost words, and what the program said last."""
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        for _ in range(_LISTENS if self._said is not None else 0):  # Its leash writes as it ends.
            assert self._said is not None
            self._said.seek(0)
            if said := self._said.read(4 * _SHOWN).decode(errors="replace").strip():
                words += f"; {said}"
                break
            await asyncio.sleep(0.05)
        return words[: 3 * _SHOWN]


class _Loop:
    """The loop of all connections of this process; a forked child has one of its own."""

    def __init__(self) -> None:
        self.current = BackgroundLoop("palaestra-mcp")
        close_at_exit(self)

    def close(self) -> None:
        """End all connections."""
        self.current.close(asyncio.sleep(0))

    def forget(self) -> None:
        """The connections are the parent's."""
        self.current = BackgroundLoop("palaestra-mcp")


_loop = _Loop()
