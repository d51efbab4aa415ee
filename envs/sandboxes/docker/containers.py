"""Creates, starts and ends single containers. A container runs as long as the stream to it is open."""

import itertools
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from palaestra.envs.sandboxes.docker import hardening, images, owners
from palaestra.envs.sandboxes.docker.connection import DockerConnection, library
from palaestra.envs.sandboxes.docker.stream import AttachStream, attach
from palaestra.envs.sandboxes.limits import Limits
from palaestra.errors import Broken

FIRST_USER, USERS = 10_000, 50_000
"""Each container runs as a different user, because some limits of the kernel count by user over all containers."""
_BECOME_SUPERVISOR = """
import json, os, site, sys
settings = json.loads(sys.argv[1]) | {"paths": site.getsitepackages()}
words = ["-I", "-S", "/opt/palaestra/runner", "supervisor", json.dumps(settings)]
os.execv(sys.executable, [sys.executable, *words])
"""  # only the image's own Python knows where its packages are
_users = itertools.count(os.getpid() * 64)


@dataclass(eq=False)
class Container:
    """A running container, the socket to its supervisor, and how it has been used."""

    identity: str
    socket: AttachStream
    born: float = field(default_factory=time.monotonic)
    runs: int = 0
    guards: dict[str, Any] = field(default_factory=dict)
    """Capabilities that its supervisor reports."""

    def why(self) -> str:
        """Return the supervisor's last error output, for the error message after the container has ended."""
        return self.socket.error_text or f"container {self.identity[:12]} ended without a word"

    def is_quiet(self) -> bool:
        """Return whether an idle container is alive and has sent nothing; any output would be unrequested."""
        self.socket.setblocking(False)
        try:
            self.socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


@dataclass(frozen=True)
class Launcher:
    """Creates containers of one image. They differ in their user and their limits."""

    connection: DockerConnection
    image: str
    runtime: str | None
    cpus: float
    profile: str
    settings: dict[str, Any]
    """Settings of the supervisor in a container."""

    @classmethod
    def open(
        cls, connection: DockerConnection, image: str, runtime: str | None, cpus: float, preload: str
    ) -> "Launcher":
        """Return a launcher; raise SandboxUnavailable unless the engine has the image and the runtime."""
        connection.need_runtime(runtime)
        with connection.client() as api:
            images.check(api, image)
        profile = hardening.seccomp_profile(connection.info.get("Architecture") or os.uname().machine)
        if connection.is_podman:
            # Docker's API expects the filter itself; Podman's expects the path of a file on its machine.
            with NamedTemporaryFile("w", prefix="palaestra-seccomp-", suffix=".json", delete=False) as file:
                file.write(profile)
            profile = file.name
        settings = {"mode": "container", "preload_wanted": preload, "readonly": [], "scratch": "/work"}
        return cls(connection, images.tag(image), runtime, cpus, profile, settings)

    def launch(self, limits: Limits) -> Container:
        """Create a container, attach to it and start it. Raise `Broken` if the engine fails."""
        user = FIRST_USER + next(_users) % USERS
        identity, podman = "", self.connection.is_podman
        try:
            with self.connection.client() as api:
                host_config = hardening.host_config(
                    api, limits, user=user, profile=self.profile, runtime=self.runtime, cpus=self.cpus, podman=podman
                )
                created = api.create_container(
                    self.image,
                    entrypoint=["python3", "-I", "-c", _BECOME_SUPERVISOR],
                    command=[json.dumps(self.settings)],
                    user=f"{user}:{user}",
                    stdin_open=True,
                    labels={owners.LABEL: owners.owner_label()},
                    host_config=host_config,
                )
                identity = created["Id"]
                socket = attach(api, identity)
                api.start(identity)
        except (library().errors.DockerException, OSError) as error:
            if identity:
                self.end(identity)
            raise Broken(f"the engine could not start a container: {error}") from error
        return Container(identity, socket)

    def end(self, identity: str) -> None:
        """Kill and remove a container."""
        try:
            with self.connection.client() as api:
                owners.remove(api, identity)
        except (library().errors.DockerException, OSError) as error:
            raise Broken(f"the engine could not remove container {identity[:12]}: {error}") from error

    def close(self) -> None:
        if self.connection.is_podman:
            Path(self.profile).unlink(missing_ok=True)
