"""`open_sandbox`: a backend by name. There is no fall-back: what cannot be had is an error that names the options."""

import atexit
import threading
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from palaestra.envs.sandboxes.sandbox import Sandbox
from palaestra.errors import UsageError

BACKENDS = {
    "local": "palaestra.envs.sandboxes.local:LocalSandbox",
    "docker": "palaestra.envs.sandboxes.docker:DockerSandbox",
    "remote": "palaestra.envs.sandboxes.remote:RemoteSandbox",
    "fusion": "palaestra.envs.sandboxes.remote:FusionSandbox",
}
"""`fusion` is a SandboxFusion server: one-shot runs only."""

_shared: dict[tuple[str, str], Sandbox] = {}
_lock = threading.Lock()


def open_sandbox(backend: str = "local", *, require: Sequence[str] = (), **options: Any) -> Sandbox:
    """Open a backend. `require` names guards (see `Capabilities`) without which it must not open."""
    if backend not in BACKENDS:
        close = get_close_matches(backend, BACKENDS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"no sandbox backend is named {backend!r}; {hint}known: {', '.join(BACKENDS)}")
    module, _, name = BACKENDS[backend].partition(":")
    opened: Sandbox = getattr(import_module(module), name)(**options)
    try:
        opened.capabilities().require(*require)
    except BaseException:
        opened.close()
        raise
    return opened


def shared_sandbox(backend: str = "local", **options: Any) -> Sandbox:
    """The process's one sandbox of this backend and these options: what toolkits use. It closes with the process."""
    key = (backend, repr(sorted(options.items())))
    with _lock:
        if key not in _shared:
            _shared[key] = open_sandbox(backend, **options)
            atexit.register(_shared[key].close)
        return _shared[key]
