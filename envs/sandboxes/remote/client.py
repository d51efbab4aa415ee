"""A sandbox on another machine, or in another process: everything is asked of `palaestra serve sandbox`.

Names of sessions and requests are made here, so that a request whose answer was lost is sent again and not executed
again. A run that is cancelled here is ended there; of a client that dies the server notices the lost connection, or
that nobody asks any more. Left out: asking again (`service`), HTTP (`exchange`), the form of messages (`wire`).
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from palaestra.endpoint.reply import Unreadable
from palaestra.envs.sandboxes import arguments
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.remote.background import Background
from palaestra.envs.sandboxes.remote.exchange import Exchange
from palaestra.envs.sandboxes.remote.service import GRACE, OPENING, Service
from palaestra.envs.sandboxes.remote.wire import (
    CONTENT_TYPE,
    TOKEN_ENV,
    most_names,
    most_output,
    read_names,
    read_result,
    run_request,
    run_seconds,
    start_request,
)
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.sandbox import OneShot, Program, Sandbox, Session
from palaestra.errors import Broken, SandboxUnavailable, UsageError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class RemoteSandbox(Sandbox):
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
        exchange = Exchange(url, token_env, CONTENT_TYPE, patience, transport)
        self._service = Service(exchange)
        self._background = Background("palaestra-remote-sandbox")
        try:
            self._capabilities, theirs = self._background.wait(self._service.greet(), 2 * OPENING + GRACE)
            self.limits = theirs.narrowed(Limits.of(limits, Limits().within(theirs)))
        except Broken as error:
            self.close()
            raise SandboxUnavailable("remote", str(error), ["`palaestra serve sandbox` starts a server"]) from None
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"RemoteSandbox({self._service.exchange.address})"

    def capabilities(self) -> Capabilities:
        """What the server's backend enforces, by its own account."""
        return self._capabilities

    def start(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> "RemoteSession":
        return self._background.wait(self._start(files, limits), self._latest(0.0))

    async def astart(
        self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None
    ) -> "RemoteSession":
        return await self._background.join(self._start(files, limits))

    def _once(self, asked: OneShot) -> Result:
        latest = self._latest(run_seconds(asked.timeout, asked.limits))
        return self._background.wait(self._asked(asked), latest)

    async def _aonce(self, asked: OneShot) -> Result:
        return await self._background.join(self._asked(asked))

    def close(self) -> None:
        self._background.close(self._service.exchange.aclose())

    async def _start(self, files: Mapping[str, bytes] | None, limits: Limits | None) -> "RemoteSession":
        limits = self.limits.narrowed(limits)
        header, body = start_request(files, limits)
        session = RemoteSession(self._service, self._background, uuid4().hex, limits)
        try:
            await self._service.ask("start", {"session": session.name} | header, body)
        except asyncio.CancelledError:
            await self._service.end(session.name)
            raise
        return session

    async def _asked(self, asked: OneShot) -> Result:
        limits = asked.limits
        header, _ = start_request(None, limits)
        run, body = run_request(asked.program, asked.timeout, asked.stdin, asked.show_last, limits, asked.files)
        header |= run | {"session": uuid4().hex}
        return await ask_run(self._service, "once", header, body, run_seconds(asked.timeout, limits), limits)

    def _latest(self, seconds: float) -> float:
        """When even a loop that has died must have been noticed."""
        return self._service.exchange.patience + seconds + 2 * GRACE


class RemoteSession(Session):
    """A session of the server's, known by a name that was made here."""

    def __init__(self, service: Service, background: Background, name: str, limits: Limits) -> None:
        self.name = name
        self.limits = limits
        self._service = service
        self._background = background
        self._closed = self._interrupted = self._asking = False

    def __repr__(self) -> str:
        return f"RemoteSession({self.name[:8]} at {self._service.exchange.address})"

    def run(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        seconds = run_seconds(timeout, self.limits)
        return self._wait(self._run(program, timeout, stdin, show_last), seconds)

    async def arun(
        self, program: Program, *, timeout: float | None = None, stdin: bytes = b"", show_last: bool = False
    ) -> Result:
        try:
            return await self._background.join(self._run(program, timeout, stdin, show_last))
        except asyncio.CancelledError:
            if self._asking:  # The other thread may come to it after our caller has come back.
                self._closed = self._interrupted = True
            raise

    def put(self, path: str, data: bytes) -> None:
        self._wait(self._put(path, data))

    async def aput(self, path: str, data: bytes) -> None:
        await self._background.join(self._put(path, data))

    def get(self, path: str) -> bytes:
        return self._wait(self._get(path))

    async def aget(self, path: str) -> bytes:
        return await self._background.join(self._get(path))

    def listdir(self, path: str = ".") -> list[str]:
        return self._wait(self._listdir(path))

    async def alistdir(self, path: str = ".") -> list[str]:
        return await self._background.join(self._listdir(path))

    def reset(self) -> None:
        self._wait(self._reset())

    async def areset(self) -> None:
        await self._background.join(self._reset())

    def fork(self) -> "RemoteSession":
        return self._wait(self._fork())

    async def afork(self) -> "RemoteSession":
        return await self._background.join(self._fork())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._background.wait(self._service.end(self.name), GRACE)
            except Broken:  # The sandbox is closed: the server will notice.
                return

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._background.join(self._service.end(self.name))
            except Broken:  # As above.
                return

    # On the background's loop.

    async def _run(self, program: Program, timeout: float | None, stdin: bytes, show_last: bool) -> Result:
        header, body = run_request(program, timeout, stdin, show_last, self.limits)
        header["session"] = self._open()
        seconds = run_seconds(timeout, self.limits)
        self._asking = True
        try:
            return await ask_run(self._service, "run", header, body, seconds, self.limits)
        except asyncio.CancelledError:
            self._closed = self._interrupted = True
            raise
        finally:
            self._asking = False

    async def _put(self, path: str, data: bytes) -> None:
        await self._service.ask(
            "put", {"session": self._open(), "path": arguments.path_of(path)}, arguments.content("data", data)
        )

    async def _get(self, path: str) -> bytes:
        header = {"session": self._open(), "path": arguments.path_of(path)}
        return (await self._service.ask("get", header, most=self.limits.file_bytes))[1]

    async def _listdir(self, path: str) -> list[str]:
        header = {"session": self._open(), "path": arguments.path_of(path)}
        return read_names((await self._service.ask("listdir", header, most=most_names(self.limits)))[1])

    async def _reset(self) -> None:
        await self._service.ask("reset", {"session": self._open()})

    async def _fork(self) -> "RemoteSession":
        fork = RemoteSession(self._service, self._background, uuid4().hex, self.limits)
        try:
            await self._service.ask("fork", {"session": self._open(), "fork": fork.name})
        except asyncio.CancelledError:
            await self._service.end(fork.name)
            raise
        return fork

    def _open(self) -> str:
        if self._interrupted:
            raise UsageError("an earlier call was cancelled, which ended this session; start another one")
        if self._closed:
            raise UsageError("the session is closed; start another one")
        return self.name

    def _wait(self, work: Coroutine[Any, Any, T], seconds: float = 0.0) -> T:
        return self._background.wait(work, self._service.exchange.patience + seconds + 2 * GRACE)


async def ask_run(
    service: Service, operation: str, header: dict[str, Any], body: bytes, seconds: float, limits: Limits
) -> Result:
    """A run's result. Whoever cancels it ends the run, and the session with it, at the server."""
    try:
        answer = await service.ask(operation, header, body, seconds=seconds + GRACE, most=most_output(limits))
        return read_result(*answer)
    except Unreadable as error:
        raise service.lied(error) from None
    except asyncio.CancelledError:
        await service.end(header["session"])
        raise
