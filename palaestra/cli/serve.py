"""`palaestra serve sandbox`: this machine runs the programs of agents that train elsewhere.

Left out: how a client asks (`palaestra.envs.sandboxes.remote`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from palaestra.errors import UsageError

TOKEN_ENV = "PALAESTRA_SANDBOX_TOKEN"


@dataclass(frozen=True)
class Options:
    """Serve a sandbox over HTTP, for `open_sandbox("remote", url=...)` on another machine."""

    what: Annotated[Literal["sandbox"], tyro.conf.Positional]
    """What is served."""
    backend: Literal["local", "docker"] = "local"
    """Where programs run on this machine."""
    host: str = "127.0.0.1"
    """Where to listen; 0.0.0.0 for every network of this machine, which needs a token."""
    port: int = 8765
    """0 takes a free one."""
    token_env: str = TOKEN_ENV
    """Environment variable that holds the token. Without one, this machine alone is answered."""
    require: tuple[str, ...] = ()
    """Guards without which it must not start: files, network, memory, syscalls..."""
    most_sessions: int = 256
    """Sessions alive at once."""
    most_running: int = 32
    """Programs that run at once; others wait."""
    most_waiting: int = 256
    """Programs that wait; more are refused for now."""
    most_seconds: float = 600.0
    """The longest time that a run may ask for."""
    idle_seconds: float = 900.0
    """A session that nobody has touched for so long is ended."""
    memory_mb: int = 512
    """Memory of one session."""
    certificate: Path | None = None
    """PEM file, for https."""
    key: Path | None = None
    """Its key, where it is in a file of its own."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65_536:
            raise UsageError(f"port is {self.port}; it must be from 0 to 65535")
        if self.key is not None and self.certificate is None:
            raise UsageError("key belongs to a certificate; add --certificate")


def run(arguments: Sequence[str]) -> int:
    """Answer until interrupted; every session ends with it."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra serve")
    from palaestra.envs.sandboxes import Limits, open_sandbox
    from palaestra.envs.sandboxes.remote.server import find_token, serve
    from palaestra.envs.sandboxes.remote.turnstile import ServiceLimits

    token = find_token(options.token_env, options.host)
    chosen: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(ServiceLimits)}
    service = ServiceLimits(**chosen)
    limits = Limits(memory_bytes=options.memory_mb * 2**20)
    with open_sandbox(options.backend, require=options.require, limits=limits) as sandbox:
        for note in sandbox.capabilities().notes:
            print(f"note: {note}", flush=True)
        if not token:
            print("no token: every user of this machine may run programs here", flush=True)
        try:
            serve(
                sandbox,
                host=options.host,
                port=options.port,
                token=token,
                service=service,
                certificate=options.certificate,
                key=options.key,
                ready=lambda url: print(f"{url}\nCtrl-C ends it", flush=True),
            )
        except KeyboardInterrupt:
            print("ended")
    return 0
