"""Options of environments: which options a class takes, and which options no file may decide.

People share records and configs of runs. Such a file may decide what is played, but not where a program runs, which
server is called or which variable holds a key. An option for one of these is a service: only a command line may set it.
Its type marks it, as in `sandbox: Annotated[str, SERVICE]` (`envs.core.backends.Where` is marked already).

Left out: whether a value is valid (the environment checks it), and which options games and other people's
environments take.
"""

from collections.abc import Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, get_args

from palaestra.errors import UsageError, did_you_mean

FORMAT = "format"
"""Name of an option that every environment has, whatever its constructor takes."""
OF_ARENAS = ("ordered", "max_workers", "workers", "ray_address")
"""Options of arenas, which a single environment does not have."""
OF_ALL = ("split", "tasks", "seat", FORMAT)
"""palaestra's own options, which decide what is played; a class that takes them need not declare their types."""


class _Service:
    """The type of `SERVICE`."""

    def __repr__(self) -> str:
        return "SERVICE"


SERVICE = _Service()
"""Marks the type of an option or setting that decides where something runs or is written, which server is called, or
which variable holds a key. A file that people share must not decide it."""
_UNDECLARED = Parameter("undeclared", Parameter.KEYWORD_ONLY)


def is_service(annotation: Any) -> bool:
    """Return whether a type, or one of the types in it, is marked with `SERVICE`."""
    return annotation is SERVICE or any(map(is_service, get_args(annotation)))


def services_of(creator: Any, registered_with: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a shared file must not decide: services with another value than the environment's own.

    A file may decide an option without a declared type only if it is a number or None. Options of other people's
    environments (`creator` is None) have no declared type.
    """
    takes = {} if creator is None else _parameters(creator)
    services: dict[str, Any] = {}
    for name, value in options.items():
        option = takes.get(name, _UNDECLARED)
        if name in OF_ALL or (name in takes and value == registered_with.get(name, option.default)):
            continue
        if isinstance(option.annotation, str) or option.annotation is Parameter.empty:
            decided = isinstance(value, int | float | None)
        else:
            decided = not is_service(option.annotation)
        if not decided:
            services[name] = value
    return services


def options_of(creator: Any) -> dict[str, str]:
    """Return each option that a class takes and its default as Python source; an empty text for no default."""
    defaults = {
        name: "" if parameter.default is Parameter.empty else repr(parameter.default)
        for name, parameter in _parameters(creator).items()
    }
    return {**defaults, FORMAT: repr(getattr(creator, "format", None))}


def refuse_unknown(env_id: str, creator: Any, names: Iterable[str]) -> None:
    """Raise a UsageError for options that a class does not take; the message lists those that it takes."""
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature(creator).parameters.values()):
        return
    takes = list(options_of(creator))
    for name in names:
        if name not in takes:
            hint = did_you_mean(name, takes)
            if not hint and isinstance(getattr(creator, name, None), int | float | str | tuple):
                hint = f"; {name} is decided by the class: set it in a subclass, under an id of your own"
            raise UsageError(f"{env_id} takes no option {name!r}; it takes {', '.join(takes)}{hint}")


def refuse_mistyped(env_id: str, creator: Any, options: Mapping[str, Any]) -> None:
    """Raise a UsageError for a text in place of a boolean or a number. Any text, "no" and "FALSE" too, would count as
    true."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number"}
    for name, parameter in _parameters(creator).items():
        expected = next((text for kind, text in kinds.items() if parameter.annotation is kind), "")
        if expected and isinstance(options.get(name), str):
            raise UsageError(f"{env_id}: the option {name} is {options[name]!r}; expected {expected}")


def _parameters(creator: Any) -> dict[str, Parameter]:
    """Return the options of a class by name; a type that is written as text is resolved if possible."""
    try:
        takes = signature(creator, eval_str=True)
    except Exception:  # A name in an author's annotation may be anything.
        takes = signature(creator)
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return {name: parameter for name, parameter in takes.parameters.items() if parameter.kind not in kinds}
