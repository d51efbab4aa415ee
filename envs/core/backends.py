"""A service by its backend's name: a sandbox, an index, a browser. Opened once a process for all who ask alike.

There is no fall-back: what cannot be had is an error that names the options. Left out: what a service does.
"""

import atexit
import inspect
import threading
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Generic, TypeVar

from palaestra.errors import UsageError

Where = str | Mapping[str, Any]
"""A backend's name, or a mapping with its options: {"backend": "remote", "url": ...}."""
Service = TypeVar("Service")


class Backends(Generic[Service]):
    """The backends of one kind of service. A service has `close()`."""

    also = ""
    """What else names one, in words before the names."""

    def __init__(self, kind: str, opener: str, table: Mapping[str, str]) -> None:
        """`kind` and `opener` stand in errors: what one is called, what users call. The table says "module:Class"."""
        self.kind, self.opener, self.table = kind, opener, table
        self._shared: dict[tuple[str, str], Service] = {}
        self._lock = threading.Lock()

    def read(self, where: Where) -> tuple[str, dict[str, Any]]:
        """The backend's name and its options."""
        options = dict(where) if isinstance(where, Mapping) else {"backend": where}
        backend = options.pop("backend", None)
        if isinstance(backend, str) and backend in self.table:
            return backend, options
        close = get_close_matches(str(backend), self.table, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(
            f"no {self.kind} is {where!r}; {hint}expected {self.also}{', '.join(self.table)}, or a mapping with such a "
            "'backend'"
        )

    def open(self, backend: str, **options: Any) -> Service:
        """A new one, which the caller closes."""
        module, _, name = self.table[backend].partition(":")
        made: type[Service] = getattr(import_module(module), name)
        self._check_options(backend, made, options)
        return made(**options)

    def shared(self, backend: str, **options: Any) -> Service:
        """The process's one service of this backend and these options. It closes with the process."""
        key = (backend, repr(sorted(options.items())))
        with self._lock:
            if key not in self._shared:
                opened: Any = self.open(backend, **options)
                self._shared[key] = opened
                atexit.register(opened.close)
            return self._shared[key]

    def _check_options(self, backend: str, made: type[Service], options: Mapping[str, Any]) -> None:
        """Names only; a value is for the backend to judge."""
        found = inspect.signature(made).parameters.values()
        known = {one.name: one for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        takes_any = any(one.kind is one.VAR_KEYWORD for one in found)
        for name in options:
            if name not in known and not takes_any:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise UsageError(f"the {backend} {self.kind} has no option {name!r}; {hint}known: {', '.join(known)}")
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in options:
                raise UsageError(f"the {backend} {self.kind} needs {name!r}: {self.opener}({backend!r}, {name}=...)")
