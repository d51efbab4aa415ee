"""`palaestra serve sandbox`: run programs on this machine for agents that train on other machines.

Left out: the client (`palaestra.envs.sandboxes.remote`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from palaestra.cli.shared_options import ListenOptions
from palaestra.envs.sandboxes import Limits, open_sandbox
from palaestra.envs.sandboxes.remote.admission import ServiceLimits
from palaestra.envs.sandboxes.remote.connection import TOKEN_ENV
from palaestra.envs.sandboxes.remote.server import find_token, serve
from palaestra.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ServeSandboxOptions(ListenOptions):
    """Serve a sandbox over HTTP, for `open_sandbox("remote", url=...)` on another machine.

    These options are the maximum limits of a session; the defaults are enough for palaestra's tools and graders. A
    client that requests no limits gets the usual ones, but never more than these.
    """

    backend: Literal["local", "docker"] = "local"
    """Sandbox that runs the programs on this machine."""
    port: int = 8765
    """Port; 0 chooses a free one."""
    token_env: str = TOKEN_ENV
    require: tuple[str, ...] = ()
    """Guards that the sandbox must have, or the server does not start: files, network, memory, syscalls..."""
    service: tyro.conf.OmitArgPrefixes[ServiceLimits] = field(default_factory=ServiceLimits)
    cpu_seconds: float = 600.0
    """Maximum CPU seconds of one process of a session."""
    memory_mb: int = 2048
    """Maximum memory of one session, in MB."""
    output_mb: int = 8
    """MB that are kept of each of the two output streams of a run, which graders compare."""
    code_mb: int = 64
    """Maximum size of one program and of its stdin, in MB: tests may be large."""
    certificate: Path | None = None
    """PEM file with the certificate, for https."""
    key: Path | None = None
    """PEM file with the certificate's key, if that is a separate file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key is not None and self.certificate is None:
            raise UsageError("key belongs to a certificate; add --certificate")

    def limits(self) -> Limits:
        """Return the maximum limits that a client may ask for."""
        return Limits(
            seconds=self.service.most_seconds,
            cpu_seconds=self.cpu_seconds,
            memory_bytes=self.memory_mb * 2**20,
            output_bytes=self.output_mb * 2**20,
            code_bytes=self.code_mb * 2**20,
        )


def run(arguments: Sequence[str]) -> int:
    """Answer requests until interrupted, then end every session."""
    options = tyro.cli(ServeSandboxOptions, args=list(arguments), prog="palaestra serve sandbox")
    token = find_token(options.token_env, options.host)
    with open_sandbox(options.backend, require=options.require, limits=options.limits()) as sandbox:
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
                service=options.service,
                certificate=options.certificate,
                key=options.key,
                ready=lambda url: print(f"{url}\nCtrl-C ends it", flush=True),
            )
        except KeyboardInterrupt:
            print("ended")
    return 0
