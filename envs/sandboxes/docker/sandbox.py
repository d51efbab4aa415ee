"""The docker backend: programs run in hardened containers, by the same runner as everywhere.

    sandbox     what a caller holds: sessions and one-shot runs
    pool        containers kept warm, given out, given back, thrown away
    containers  one container: made, started, ended      hardening   how it is locked up
    stream      the one stream to the supervisor in it   owners      whose it is, and the reaper
    images      which image, and how it is built         guards      what is enforced
    connection  the engine

A container dies with the stream to it: nothing here has to be alive for that, so a killed trainer leaves none behind.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from palaestra.envs.running.lifetime import close_at_exit
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.docker import guards, owners
from palaestra.envs.sandboxes.docker.connection import NAME, Connection
from palaestra.envs.sandboxes.docker.containers import Container, Launcher
from palaestra.envs.sandboxes.docker.pool import Policy, Pool
from palaestra.envs.sandboxes.framed import (
    SPARE_BYTES,
    FramedSession,
    Request,
    checked,
    run_once_request,
    start_request,
)
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.local import Preload
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.sandbox import OneShot, Sandbox, Session
from palaestra.envs.sandboxes.streams import SocketStream
from palaestra.errors import Broken, SandboxUnavailable

OPENING_SECONDS = 60.0
"""For a started container to say that it is ready."""
FIRST_RUNS = ("pass", "try: import numpy, sympy\nexcept ImportError: pass")
"""What a new container runs before anybody gets it: it proves that it can, and warms both interpreters."""
_OF_THE_CONTAINER = ("memory_bytes", "processes", "scratch_bytes", "scratch_files")
"""Limits that are the engine's to keep, and cannot change once a container runs."""


class ContainerStream(SocketStream):
    """A stream that takes its container with it when it is dropped."""

    def __init__(self, container: Container, pool: Pool) -> None:
        super().__init__(container.socket, container.why)
        self.container, self._pool = container, pool

    def drop(self) -> None:
        first = not self.dropped
        super().drop()
        if first:
            self._pool.discard(self.container)


class DockerSandbox(Sandbox):
    """Runs programs in containers of an engine: Docker, or Podman behind its socket.

    `image`: "python", "runner", "judge", or one of your own built on these. `engine`: its address, else DOCKER_HOST or
    the usual socket. `runtime`: "runsc" for gVisor. `cpus`: how many a container may use, 0 for all. `policy`: how many
    containers there are and how long each is used, as a `Policy` or a mapping with some of its fields.
    """

    def __init__(
        self,
        limits: Limits | Mapping[str, Any] | None = None,
        image: str = "python",
        *,
        engine: str | None = None,
        runtime: str | None = None,
        cpus: float = 0.0,
        preload: Preload = "auto",
        policy: Policy | Mapping[str, Any] | None = None,
    ) -> None:
        self.limits = Limits.of(limits)
        policy = Policy.of(policy)
        self._closed = False
        self._connection = Connection(engine)
        self._launcher = Launcher.open(self._connection, image, runtime, cpus, preload)
        try:
            self.reap()
            first = self._first(runtime)
        except BaseException:
            self._launcher.close()
            raise
        self._capabilities = guards.capabilities(
            first.found, self._connection.info, podman=self._connection.is_podman, runtime=runtime
        )
        self._pool = Pool(self._launch, self._end, self.limits, policy)
        self._pool.add(first)
        close_at_exit(self)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def start(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> Session:
        limits = self.limits.narrowed(limits)
        stream = ContainerStream(self._pool.take(fresh=True, limits=self._own(limits)), self._pool)
        try:
            start_request(limits, files).over(stream)
        except BaseException:
            stream.drop()
            raise
        return FramedSession(stream, limits)

    async def astart(self, *, files: Mapping[str, bytes] | None = None, limits: Limits | None = None) -> Session:
        limits = self.limits.narrowed(limits)
        stream = ContainerStream(await self._taken(True, self._own(limits)), self._pool)
        try:
            await start_request(limits, files).aover(stream)
        except BaseException:
            stream.drop()
            raise
        return FramedSession(stream, limits)

    def _once(self, asked: OneShot) -> Result:
        request = run_once_request(asked)
        if isinstance(request, Result):
            return request
        own = self._own(asked.limits)
        container = self._pool.take(fresh=False, limits=own)
        try:
            return self._served(request, container, own)
        except Broken:
            if container.runs == 0:
                raise
        # An earlier run may be the reason. Nothing of this one lasts, so it may run again where nobody was before.
        return self._served(request, self._pool.take(fresh=True), own)

    async def _aonce(self, asked: OneShot) -> Result:
        request = run_once_request(asked)
        if isinstance(request, Result):
            return request
        own = self._own(asked.limits)
        container = await self._taken(False, own)
        try:
            return await self._aserved(request, container, own)
        except Broken:
            if container.runs == 0:
                raise
        return await self._aserved(request, await self._taken(True, None), own)

    def reap(self) -> int:
        """Remove the containers whose owner is gone, as opening does; how many there were."""
        with self._connection.client() as api:
            return owners.reap(api)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        self._launcher.close()

    def _own(self, limits: Limits) -> Limits | None:
        """The limits, where they ask for a container that is not like the others."""
        same = all(getattr(limits, name) == getattr(self.limits, name) for name in _OF_THE_CONTAINER)
        return None if same else limits

    def _served(self, request: Request[Result], container: Container, own: Limits | None) -> Result:
        stream = ContainerStream(container, self._pool)
        try:
            result = request.over(stream)
        except BaseException:
            stream.drop()
            raise
        return self._over(result, stream, own)

    async def _aserved(self, request: Request[Result], container: Container, own: Limits | None) -> Result:
        stream = ContainerStream(container, self._pool)
        try:
            result = await request.aover(stream)
        except BaseException:
            stream.drop()
            raise
        return self._over(result, stream, own)

    def _over(self, result: Result, stream: ContainerStream, own: Limits | None) -> Result:
        """Keep the container for the next run, or throw it away."""
        if own is None and _is_ordinary(result):
            self._pool.give_back(stream.container)
        else:
            stream.drop()
        return result

    async def _taken(self, fresh: bool, limits: Limits | None) -> Container:
        """A container without blocking the loop."""
        if limits is None and (ready := self._pool.take_at_once(fresh=fresh)) is not None:
            return ready
        waiting = asyncio.ensure_future(asyncio.to_thread(self._pool.take, fresh=fresh, limits=limits))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, waiting: "asyncio.Future[Container]") -> None:
        """Nobody waits for it any more."""
        if not waiting.cancelled() and waiting.exception() is None:
            self._pool.discard(waiting.result())

    def _first(self, runtime: str | None) -> Container:
        """The first container shows what can be had here; what keeps it from working is no passing trouble."""
        try:
            return self._launch(self.limits)
        except Broken as error:
            remedies = [
                "the engine's own log says more",
                "python -m palaestra.envs.sandboxes.docker python    builds anew",
            ]
            if runtime is not None:
                remedies = [f"a newer {runtime}: the runner needs pidfd_open and close_range", "or leave `runtime` out"]
            raise SandboxUnavailable(NAME, f"a container does not work: {error}", remedies) from error

    def _launch(self, limits: Limits) -> Container:
        """A container that is ready, and has shown that it can run programs."""
        container = self._launcher.launch(limits)
        stream = SocketStream(container.socket, container.why)
        try:
            said = checked(stream.exchange(b"", SPARE_BYTES, OPENING_SECONDS)[0])
            if "unavailable" in said:
                raise SandboxUnavailable(NAME, str(said["unavailable"]), map(str, said["remedies"]))
            container.found = said["capabilities"]
            for program in FIRST_RUNS[: 1 if self._launcher.settings["preload_wanted"] == "bare" else None]:
                request = run_once_request(OneShot(program, None, OPENING_SECONDS, b"", False, limits))
                result = request if isinstance(request, Result) else request.over(stream)
                if not result.ok:
                    raise Broken(f"a new container cannot run {program!r}: {result}")
        except BaseException:
            stream.drop()
            with contextlib.suppress(Broken):
                self._end(container)
            raise
        return container

    def _end(self, container: Container) -> None:
        self._launcher.end(container.identity)

    def forget(self) -> None:
        """In a forked child: everything is the parent's."""
        self._pool.forget()
        self._closed = True


def _is_ordinary(result: Result) -> bool:
    """Whether nothing happened that a container should not be used after."""
    ended = result.signal is None and not (result.timed_out or result.oom or result.state_lost)
    return ended and result.limit_hit in ("", "output")
