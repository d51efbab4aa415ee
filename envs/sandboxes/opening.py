"""`open_sandbox`: a backend by name. There is no fall-back: what cannot be had is an error that names the options."""

import atexit
import inspect
import threading
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from palaestra.envs.sandboxes.capabilities import guards_of
from palaestra.envs.sandboxes.sandbox import Sandbox
from palaestra.errors import UsageError

BACKENDS = {
    "local": "palaestra.envs.sandboxes.local:LocalSandbox",
    "docker": "palaestra.envs.sandboxes.docker:DockerSandbox",
    "remote": "palaestra.envs.sandboxes.remote:RemoteSandbox",
    "fusion": "palaestra.envs.sandboxes.remote:FusionSandbox",
}
"""`fusion` is a SandboxFusion server: one-shot runs only."""

Where = str | Mapping[str, Any]
"""A backend's name, or a mapping with its options: {"backend": "remote", "url": ...}."""

_shared: dict[tuple[str, str], Sandbox] = {}
_lock = threading.Lock()


def read_where(where: Where) -> tuple[str, dict[str, Any]]:
    """The backend's name and its options."""
    options = dict(where) if isinstance(where, Mapping) else {"backend": where}
    backend = options.pop("backend", None)
    if isinstance(backend, str) and backend in BACKENDS:
        return backend, options
    close = get_close_matches(str(backend), BACKENDS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(
        f"no sandbox is {where!r}; {hint}expected {', '.join(BACKENDS)}, or a mapping with such a 'backend'"
    )


def open_sandbox(backend: Where = "local", *, require: Sequence[str] = (), **options: Any) -> Sandbox:
    """Open a backend. `require` names guards (see `Capabilities`) without which it must not open."""
    backend, given = read_where(backend)
    guards = *guards_of(require), *guards_of(given.pop("require", ()))
    options = {**given, **options}
    module, _, name = BACKENDS[backend].partition(":")
    made: type[Sandbox] = getattr(import_module(module), name)
    _check_options(backend, made, options)
    opened = made(**options)
    try:
        opened.capabilities().require(*guards)
    except BaseException:
        opened.close()
        raise
    return opened


def _check_options(backend: str, made: type[Sandbox], options: Mapping[str, Any]) -> None:
    """Names only; a value is for the backend to judge."""
    found = inspect.signature(made).parameters.values()
    known = {one.name: one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    takes_any = any(one.kind is one.VAR_KEYWORD for one in found)
    for name in options:
        if name not in known and not takes_any:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"the {backend} sandbox has no option {name!r}; {hint}known: {', '.join(known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in options:
            raise UsageError(f"the {backend} sandbox needs {name!r}: open_sandbox({backend!r}, {name}=...)")


def shared_sandbox(backend: str = "local", **options: Any) -> Sandbox:
    """The process's one sandbox of this backend and these options: what toolkits use. It closes with the process."""
    key = (backend, repr(sorted(options.items())))
    with _lock:
        if key not in _shared:
            _shared[key] = open_sandbox(backend, **options)
            atexit.register(_shared[key].close)
        return _shared[key]
