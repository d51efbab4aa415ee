"""The container engine (Docker or Podman): how to connect to it through the `docker` library, and what it supports.

The library is imported only when the container engine is first used. Podman works through its socket.
"""

import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from palaestra.errors import MissingExtra, SandboxUnavailable

NAME = "docker"
SECONDS = 60.0
"""Timeout of one request to the engine, in seconds."""
REMEDIES = (
    "Docker: apt-get install docker.io, or sudo systemctl start docker",
    "Podman: systemctl --user start podman.socket; export DOCKER_HOST=unix:///run/user/$UID/podman/podman.sock",
    "an engine elsewhere: DOCKER_HOST=unix:///path/to/docker.sock, or open_sandbox('docker', engine=...)",
)
TUNNEL = (
    "forward the engine's socket: ssh -L /tmp/engine.sock:/var/run/docker.sock HOST",
    "then engine='unix:///tmp/engine.sock'",
)


class DockerConnection:
    """A connection to a container engine that answers."""

    def __init__(self, engine: str | None) -> None:
        docker = library()
        problem = ""
        try:
            settings = docker.utils.kwargs_from_env() | ({"base_url": engine} if engine else {})
            self._settings = {"timeout": SECONDS, "version": "auto", **settings}
            api = docker.APIClient(**self._settings)
        except (docker.errors.DockerException, OSError, ValueError) as error:
            problem = str(error) or type(error).__name__  # only the text: the frames of the error hold an open socket
        if problem:
            address = engine or os.environ.get("DOCKER_HOST") or "the usual socket"
            raise SandboxUnavailable(NAME, f"no engine answers at {address}: {problem}", REMEDIES)
        with closing(api):
            if urlsplit(api.base_url).scheme not in ("http+docker", "http") or "ssh" in api.base_url:
                text = f"no stream to a container can be kept through {api.base_url}: only unix sockets and plain TCP"
                raise SandboxUnavailable(NAME, text, TUNNEL)
            self._settings["version"] = api.api_version
            self.info: dict[str, Any] = api.info()
            parts = api.version().get("Components") or []
        self.is_podman = any("podman" in str(part.get("Name")).lower() for part in parts)

    @contextmanager
    def client(self) -> Generator[Any]:
        """Yield a client for a few requests. Threads must not share one, and each keeps dozens of sockets."""
        with closing(library().APIClient(**self._settings)) as api:
            yield api

    def patient_client(self, seconds: float) -> Any:
        """Return a `DockerClient` with this timeout in seconds, for builds; the caller closes it."""
        return library().DockerClient(**{**self._settings, "timeout": seconds})

    def need_runtime(self, runtime: str | None) -> None:
        """Raise SandboxUnavailable unless the engine has the runtime; None is the engine's default."""
        runtimes = self.info.get("Runtimes") or {}
        if runtime is None or runtime in runtimes:
            return
        remedies = [f"known to this engine: {', '.join(sorted(runtimes)) or 'its default only'}"]
        if runtime == "runsc":
            remedies.append("gVisor: install runsc, run `sudo runsc install`, restart the engine")
        raise SandboxUnavailable(NAME, f"the engine has no runtime {runtime!r}", remedies)


def library() -> Any:
    """Return the `docker` package, or raise MissingExtra."""
    try:
        import docker  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("docker", "docker", "the docker sandbox") from None
    return docker
