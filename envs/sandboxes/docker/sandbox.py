"""The docker backend: programs run in hardened containers, in the same runner as in every other backend.

    sandbox     the backend: sessions and one-shot runs
    pool        keeps containers ready, hands them out, takes them back, discards them
    containers  creates, starts and ends a container     hardening   the settings that isolate it
    stream      the stream to the supervisor in it       owners      names its owner; removes abandoned containers
    images      checks and builds images                 guards      the capabilities of a container
    connection  the connection to the engine

A container ends when the stream to it closes. The kernel closes it if the trainer is killed, so no container is left.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from palaestra.envs.running.lifetime import close_at_exit
from palaestra.envs.sandboxes.capabilities import Capabilities
from palaestra.envs.sandboxes.docker import guards, images, owners
from palaestra.envs.sandboxes.docker.connection import NAME, DockerConnection
from palaestra.envs.sandboxes.docker.containers import Container, Launcher
from palaestra.envs.sandboxes.docker.pool import ContainerPool
from palaestra.envs.sandboxes.framed import FramedSandbox, FrameRequest, first_words, run_request
from palaestra.envs.sandboxes.limits import Limits
from palaestra.envs.sandboxes.local import Preload
from palaestra.envs.sandboxes.result import Result
from palaestra.envs.sandboxes.sandbox import Execution, run_blocking
from palaestra.envs.sandboxes.streams import SocketStream
from palaestra.errors import Broken, SandboxUnavailable, UsageError

OPENING_SECONDS = 60.0
"""Seconds in which a started container must report that it is ready."""
FIRST_RUNS = ("pass", "try: import numpy, sympy\nexcept ImportError: pass")
"""Programs that a new container runs before its first use: they test it and warm both interpreters."""
_OF_THE_CONTAINER = ("memory_bytes", "processes", "scratch_bytes", "scratch_files")
"""Limits that the engine enforces. They cannot change once a container runs."""


class ContainerStream(SocketStream):
    """A stream that discards its container when it is dropped."""

    def __init__(self, container: Container, pool: ContainerPool) -> None:
        super().__init__(container.socket, container.why)
        self.container, self._pool = container, pool

    def drop(self) -> None:
        first = not self.dropped
        super().drop()
        if first:
            self._pool.discard(self.container)


class DockerSandbox(FramedSandbox):
    """Runs programs in containers of an engine: Docker, or Podman behind its socket.

    `image`: "python", "runner", "judge", or one of your own built on these. `engine`: the engine's address; None means
    DOCKER_HOST or the usual socket. `runtime`: "runsc" for gVisor. `cpus`: how many a container may use, 0 for all.
    `max_containers`: the most containers at once; further callers wait. `warm`: the number of unused containers to keep
    ready.
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
        max_containers: int = 64,
        warm: int = 2,
    ) -> None:
        super().__init__()
        self.limits = Limits.of(limits)
        if not 0 <= warm <= max_containers or max_containers < 1:
            raise UsageError(
                f"warm is {warm!r} and max_containers {max_containers!r}; expected 0 or more, and at least `warm` and 1"
            )
        self._closed = False
        self._connection = DockerConnection(engine)
        self._launcher = Launcher.open(self._connection, image, runtime, cpus, preload)
        try:
            self.reap()
            first = self._first(runtime)
        except BaseException:
            self._launcher.close()
            raise
        self._capabilities = guards.capabilities(
            first.guards, self._connection.info, podman=self._connection.is_podman, runtime=runtime
        )
        self._pool = ContainerPool(self._launch, self._end, self.limits, max_containers=max_containers, warm=warm)
        self._pool.add(first)
        close_at_exit(self)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def _connect(self, limits: Limits, blocking: bool) -> ContainerStream:
        return ContainerStream(await self._taken(True, self._special_limits(limits), blocking), self._pool)

    async def _alone(self, request: FrameRequest[Result], limits: Limits, blocking: bool) -> Result:
        container_limits = self._special_limits(limits)
        container = await self._taken(False, container_limits, blocking)
        try:
            return await self._run_in(container, request, container_limits, blocking)
        except Broken:
            if container.runs == 0:
                raise
        # An earlier run may be the reason. A one-shot run leaves nothing behind, so it may run again.
        return await self._run_in(await self._taken(True, None, blocking), request, container_limits, blocking)

    def reap(self) -> int:
        """Remove the containers whose owner process has ended, and return their number.

        Opening a sandbox also does this.
        """
        with self._connection.client() as api:
            return owners.reap(api)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._pool.close()
        self._launcher.close()

    def _special_limits(self, limits: Limits) -> Limits | None:
        """Return the limits if they need a container with other settings than the pool's, otherwise None."""
        same = all(getattr(limits, name) == getattr(self.limits, name) for name in _OF_THE_CONTAINER)
        return None if same else limits

    async def _run_in(
        self, container: Container, request: FrameRequest[Result], special_limits: Limits | None, blocking: bool
    ) -> Result:
        """Run the program, then return the container to the pool or discard it."""
        stream = ContainerStream(container, self._pool)
        result = await request.first_over(stream, blocking)
        if special_limits is None and _is_ordinary(result):
            self._pool.give_back(container)
        else:
            stream.drop()
        return result

    async def _taken(self, fresh: bool, limits: Limits | None, blocking: bool) -> Container:
        """Take a container from the pool; wait on another thread if this one must not block."""
        if blocking:
            return self._pool.take(fresh=fresh, limits=limits)
        if limits is None and (ready := self._pool.take_ready(fresh=fresh)) is not None:
            return ready
        # Not a task: `asyncio.run` cancels tasks as it ends, and the container would then belong to no caller.
        take = partial(self._pool.take, fresh=fresh, limits=limits)
        waiting = asyncio.get_running_loop().run_in_executor(None, take)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            waiting.add_done_callback(self._unwanted)
            raise

    def _unwanted(self, waiting: "asyncio.Future[Container]") -> None:
        """Discard the container of a caller that was cancelled."""
        if not waiting.cancelled() and waiting.exception() is None:
            self._pool.discard(waiting.result())

    def _first(self, runtime: str | None) -> Container:
        """Launch the first container; raise SandboxUnavailable if it does not work."""
        try:
            return self._launch(self.limits)
        except Broken as error:
            remedies = ["the engine's own log says more", f"{images.COMMAND} python    builds anew"]
            if runtime is not None:
                remedies = [f"a newer {runtime}: the runner needs pidfd_open and close_range", "or leave `runtime` out"]
            raise SandboxUnavailable(NAME, f"a container does not work: {error}", remedies) from error

    def _launch(self, limits: Limits) -> Container:
        """Return a container that is ready and has run the first programs."""
        container = self._launcher.launch(limits)
        stream = SocketStream(container.socket, container.why)
        try:
            container.guards = first_words(stream, NAME, OPENING_SECONDS)
            for program in FIRST_RUNS[: 1 if self._launcher.settings["preload_wanted"] == "bare" else None]:
                request = run_request(Execution(program, OPENING_SECONDS, b"", False, limits), alone=True)
                result = request if isinstance(request, Result) else run_blocking(request.over(stream, True))
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
        """Forget the pool and its containers in a forked child process. The parent keeps them."""
        self._pool.forget()
        self._closed = True


def _is_ordinary(result: Result) -> bool:
    """Return whether the container may be used again: no signal, no timeout, and no limit reached except output's."""
    was_normal = result.signal is None and not (result.timed_out or result.oom or result.state_lost)
    return was_normal and result.limit_hit in ("", "output")
