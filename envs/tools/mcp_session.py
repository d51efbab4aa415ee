"""One connection with an MCP server: a child process with pipes, or an address.

The SDK (2.x) requires that the same task opens and closes a connection, so each connection has its own task. All tasks
run on one loop, because episodes run on many threads and loops. The first request opens the connection. A server's
program runs behind `envs.running.leash`, so it ends when this process ends for any reason. Left out: how agents see the
tools (`mcp`).
"""

import asyncio
import logging
import math
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
from palaestra.envs.tools.mcp_failures import CLOSED, ENDED, last_words, start_failure
from palaestra.errors import Broken, ToolError, UsageError

START_SECONDS = 30.0
"""Timeout of a server's start and of the list of its tools, in seconds."""
CLOSE_SECONDS = 8.0
GRACE_SECONDS = 5.0
"""Seconds of our timeout beyond that of the SDK."""
MAX_PAGES = 50
_READS = 20
_SHOWN = 500
SILENT_SECONDS = 5.0
"""Seconds of a start after which a server that has not answered yet is reported."""
log = logging.getLogger("palaestra.mcp")


@dataclass(frozen=True, slots=True)
class McpServer:
    """The address of a server, or the command that starts it."""

    command: tuple[str, ...] = ()
    """The program and its arguments; empty if there is an address."""
    url: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of the program, in addition to PATH, HOME and the like."""
    folder: str | None = None
    """Working folder of the program; None means that of this process."""
    token_env: str = ""
    """Environment variable whose value is sent to the address as a bearer token."""
    start_seconds: float = START_SECONDS
    """Timeout of the start, and of the list of the tools."""

    def __post_init__(self) -> None:
        if not 0 < self.start_seconds < float("inf"):
            raise UsageError(f"start_seconds is {self.start_seconds}; expected a number of seconds above 0")
        if bool(self.command) == bool(self.url):
            raise UsageError("an MCP server is a command or a url; expected one of them: tools_from_mcp(['npx', ...])")
        if self.url:
            address_of(self.url, "url", "http://localhost:8000/mcp")

    def __str__(self) -> str:
        return f"the MCP server {self.url or ' '.join(self.command)[:200]!r}"


class McpSession:
    """A connection. Its methods may be used from any thread or loop."""

    def __init__(self, server: McpServer, stateful: bool = True) -> None:
        """`stateful`: over HTTP, use the older handshake, which gives this connection its own session on the server."""
        self.server, self.stateful = server, stateful
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._stderr: IO[bytes] | None = None
        self._last_words = ""
        """Last output of the program on standard error, set when its connection has ended."""

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        """Call a tool and return its result. Raise ToolError if the server refuses the call, Broken if it has ended."""
        work = self._call(name, arguments, seconds)
        max_seconds = self.server.start_seconds + CLOSE_SECONDS + seconds + 2 * GRACE_SECONDS
        return await _loop.current.outcome(work, max_seconds, blocking=False)

    def tools(self) -> list[Any]:
        """Return the server's tools as objects of the SDK. Raise UsageError if they cannot be listed."""
        return _loop.current.submit(self._tools()).result(
            2 * (self.server.start_seconds + CLOSE_SECONDS + GRACE_SECONDS)
        )

    def close(self) -> None:
        """End the connection, and the server's program with it."""
        if self._task is not None:
            with suppress(Broken, TimeoutError):  # The loop has ended, and all of its connections with it.
                _loop.current.submit(self._close()).result(CLOSE_SECONDS + GRACE_SECONDS)

    # Methods that run on the loop.

    async def _call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        from mcp.shared.exceptions import MCPError

        try:
            client = await self._connect()
            async with asyncio.timeout(seconds + GRACE_SECONDS):
                return await client.call_tool(name, dict(arguments), read_timeout_seconds=seconds)
        except MCPError as error:
            if error.message != CLOSED:  # Other errors have the same number.
                raise ToolError(error.message[:_SHOWN]) from None
            why = await self._why(error)
            await self._close()  # The next call opens another connection.
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
            client = await self._connect()
            async with asyncio.timeout(self.server.start_seconds):
                listed_tools, cursor = [], None
                for _ in range(MAX_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    listed_tools += page.tools
                    if not (cursor := page.next_cursor):
                        break
                return listed_tools
        except Broken as error:
            raise UsageError(str(error)) from None
        except Exception as error:
            await self._close()  # What its program wrote to standard error is known when it has ended.
            raise UsageError(f"{self.server} does not list its tools: {await self._why(error)}") from error

    async def _connect(self) -> Any:
        """Return the SDK's client. The first caller opens the connection, and other callers wait for it."""
        loop = asyncio.get_running_loop()
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:  # That of before a fork.
            self._stop = asyncio.Event()
            self._client = loop.create_future()
            self._task = loop.create_task(self._live(self._client, self._stop))
        return await asyncio.shield(self._client)

    async def _live(self, client: "asyncio.Future[Any]", stop: asyncio.Event) -> None:
        """Open the connection, wait for `stop`, and close it."""
        try:
            async with AsyncExitStack() as stack:
                opened = await self._open(stack)
                if not client.done():
                    client.set_result(opened)
                await stop.wait()
            if not client.done():
                raise TimeoutError
        except BaseException as error:
            if not client.done():
                client.set_exception(Broken(f"{self.server} does not start: {await self._why(error, True)}"))
                client.exception()  # Marks the exception as retrieved if no caller waits.
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            if self._stderr is not None:
                self._last_words, stderr, self._stderr = self._written(), self._stderr, None
                stderr.close()

    async def _open(self, stack: AsyncExitStack) -> Any:
        from anyio import move_on_after
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        # It would print a traceback for each line of a program's output that is no message.
        logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
        server, transport = self.server, None
        # The imports above take seconds of their own. With asyncio's timeout the SDK would leave the program running.
        start = stack.enter_context(move_on_after(server.start_seconds))
        wait = SILENT_SECONDS if server.start_seconds > SILENT_SECONDS else math.inf
        silent = asyncio.get_running_loop().call_later(wait, self._report_silence)
        stack.callback(silent.cancel)
        if server.command:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed where the connection ends)
            program = str(Path(leash.__file__).resolve())
            started = StdioServerParameters(
                command=sys.executable,
                args=["-I", "-S", program, str(os.getpid()), *server.command],
                env=dict(server.variables),
                cwd=server.folder,
            )
            transport = stdio_client(started, errlog=self._stderr)  # type: ignore[arg-type]  # a file with a descriptor
        else:
            secret = Secret(server.token_env)
            http = await stack.enter_async_context(create_mcp_http_client(headers=secret.header()))
            transport = streamable_http_client(server.url, http_client=http)
        mode = "legacy" if self.stateful and server.url else "auto"
        client = await stack.enter_async_context(Client(transport, mode=mode, cache=None))
        start.deadline = math.inf
        silent.cancel()
        # The SDK would check each result by a schema of the server's, in this process and without a timeout.
        client.session.validate_tool_result = _not_checked  # type: ignore[method-assign]
        return client

    async def _close(self) -> None:
        if self._task is None or self._stop is None:
            return
        self._stop.set()
        _, left = await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        for task in left:
            task.cancel()
        self._task = None

    async def _why(self, error: BaseException, starts: bool = False) -> str:
        """Return the innermost cause of an error, and the last output of the program on standard error."""
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        for _ in range(_READS if self._stderr is not None else 1):  # Its leash writes as it ends.
            if self._written().startswith(ENDED):
                break
            await asyncio.sleep(0.05)
        return start_failure(error, self._written(), self.server.start_seconds, starts and bool(self.server.url))

    def _report_silence(self) -> None:
        words = last_words(self._written()) or "it has written nothing to standard error"
        log.warning(
            "%s has not answered for %g s: %s; waiting up to %g s (start_seconds)",
            self.server, SILENT_SECONDS, words, self.server.start_seconds,
        )  # fmt: skip

    def _written(self) -> str:
        """Return the program's output on standard error."""
        if self._stderr is None:
            return self._last_words
        return os.pread(self._stderr.fileno(), 4 * _SHOWN, 0).decode(errors="replace").strip()


async def _not_checked(name: str, result: Any) -> None:
    """Do not check the result, because agents read it as text."""


class _Loop:
    """The event loop of all connections of this process. A forked child gets its own."""

    def __init__(self) -> None:
        self.current = BackgroundLoop("palaestra-mcp")
        close_at_exit(self)

    def close(self) -> None:
        """End all connections."""
        self.current.close(asyncio.sleep(0))

    def forget(self) -> None:
        """Make a new loop in a forked child process, because the connections belong to the parent."""
        self.current = BackgroundLoop("palaestra-mcp")


_loop = _Loop()
