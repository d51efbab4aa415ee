"""Opens a service (a sandbox, an index or a browser) by the name of its backend. Equal requests of a process share one.

An unknown backend or option raises an error with the known names; no other is tried. Left out: the services.
"""

import atexit
import inspect
import threading
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Generic, TypeVar

from palaestra.errors import UsageError
from palaestra.options import SERVICE

Where = Annotated[str | Mapping[str, Any], SERVICE]
"""A backend's name, or a mapping with its options: {"backend": "remote", "url": ...}."""
ServiceT = TypeVar("ServiceT")


class Backends(Generic[ServiceT]):
    """The backends of one kind of service, by name. Every service has a method `close()`."""

    also = ""
    """Text for error messages, before the names of the backends: other values that are accepted."""

    def __init__(self, kind: str, opener: str, table: Mapping[str, str]) -> None:
        """`kind` (the word for one service) and `opener` (the function that users call) appear in errors. `table` has
        "module:Class" for each backend's name."""
        self.kind, self.opener, self.table = kind, opener, table
        self._shared: dict[tuple[str, str], ServiceT] = {}
        self._lock = threading.Lock()

    def read(self, where: Where) -> tuple[str, dict[str, Any]]:
        """Return the backend's name and its options."""
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

    def open(self, backend: str, **options: Any) -> ServiceT:
        """Open a new service, which the caller closes."""
        module, _, name = self.table[backend].partition(":")
        service_class: type[ServiceT] = getattr(import_module(module), name)
        self._check_options(backend, service_class, options)
        return service_class(**options)

    def shared(self, backend: str, **options: Any) -> ServiceT:
        """Return the process's shared service of this backend and these options. It is closed when the process ends."""
        key = (backend, repr(sorted(options.items())))
        with self._lock:
            if key not in self._shared:
                opened: Any = self.open(backend, **options)
                self._shared[key] = opened
                atexit.register(opened.close)
            return self._shared[key]

    def _check_options(self, backend: str, service_class: type[ServiceT], options: Mapping[str, Any]) -> None:
        """Check the names of options only. The backend itself checks their values."""
        parameters = inspect.signature(service_class).parameters.values()
        parameters_by_name = {
            entry.name: entry for entry in parameters if entry.kind not in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD)
        }
        takes_any = any(entry.kind is entry.VAR_KEYWORD for entry in parameters)
        for name in options:
            if name not in parameters_by_name and not takes_any:
                close = get_close_matches(name, parameters_by_name, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise UsageError(
                    f"the {backend} {self.kind} has no option {name!r}; {hint}known: {', '.join(parameters_by_name)}"
                )
        for name, parameter in parameters_by_name.items():
            if parameter.default is parameter.empty and name not in options:
                raise UsageError(f"the {backend} {self.kind} needs {name!r}: {self.opener}({backend!r}, {name}=...)")
