"""`open_sandbox` opens a backend by its name."""

from collections.abc import Sequence
from typing import Any

from palaestra.envs.core.backends import Backends, Where
from palaestra.envs.sandboxes.capabilities import guards_of
from palaestra.envs.sandboxes.sandbox import Sandbox

BACKENDS = {
    "local": "palaestra.envs.sandboxes.local:LocalSandbox",
    "docker": "palaestra.envs.sandboxes.docker:DockerSandbox",
    "remote": "palaestra.envs.sandboxes.remote:RemoteSandbox",
    "fusion": "palaestra.envs.sandboxes.remote:FusionSandbox",
}
"""Classes by the name of the backend. `fusion` is a SandboxFusion server: one-shot runs only."""


class _Sandboxes(Backends[Sandbox]):
    """The backends of sandboxes. `open` fails if the opened sandbox does not enforce a required guard."""

    def open(self, backend: str, *, require: Sequence[str] = (), **options: Any) -> Sandbox:
        guards = guards_of(require)
        opened = super().open(backend, **options)
        try:
            opened.capabilities().require(*guards)
        except BaseException:
            opened.close()
            raise
        return opened


SANDBOXES = _Sandboxes("sandbox", "open_sandbox", BACKENDS)


def open_sandbox(backend: Where = "local", *, require: Sequence[str] = (), **options: Any) -> Sandbox:
    """Open a sandbox. Raise SandboxUnavailable unless it enforces every guard in `require` (see `Capabilities`)."""
    name, settings = SANDBOXES.read(backend)
    guards = *guards_of(require), *guards_of(settings.pop("require", ()))
    return SANDBOXES.open(name, require=guards, **{**settings, **options})
