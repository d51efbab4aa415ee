"""Find a part of a recipe by its name, and find the name of a part.

A part is a function, or a frozen dataclass whose instances are called; the fields of the dataclass are its settings.
There are three kinds of names: the name of a built-in part, the name under which an installed package registers a part
(an entry point of the group `palaestra.parts`, such as `advantage.median`), and `module:name` for a part of your own. A
file cannot cause an import: a part that a file names as `module:name` is an `UnloadedPart` until the user allows its
module.

Not here: how each kind of part is called (`config.part_protocols`), and the built-in parts (`config.recipes`).
"""

import sys
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import Any

from palaestra.errors import ConfigError, UsageError
from palaestra.registry import load_author

ENTRY_POINTS = "palaestra.parts"
ARGUMENTS = {
    "sampler": ("env", "task_count", "groups", "seed"),
    "shaping": ("episode",),
    "judge": ("episode",),
    "advantage": ("batch", "scores"),
    "loss": ("logprobs_S", "old_S", "advantages_S", "row_S"),
    "correction": ("log_ratio_S", "row_S"),
    "kl_estimator": ("logprobs", "reference"),
    "aggregation": ("lengths", "longest"),
}
"""Arguments of the call of a part, by its kind (`config.part_protocols`). They are passed by their place."""
Load = Callable[[str, str], Any]
"""Returns the part of a name `module:name` and a kind, such as "advantage"."""


class UnloadedPart:
    """A part that a file names as `module:name`, with its settings. Its module is not imported."""

    def __init__(self, name: str, settings: Mapping[str, Any] | None = None) -> None:
        self.name, self.settings = name, dict(settings or {})

    def __call__(self, *_: object) -> Any:
        """Raise `UsageError`, because a part that is not loaded cannot be called."""
        raise UsageError(
            f"the part {self.name!r} is not loaded, because nothing that a file names is imported; if you trust its "
            f"module, add --allow-code {module_of(self.name)}"
        )


def load_part(name: str, kind: str) -> Any:
    """Import the part `module:name`, because the user named it."""
    if "" not in sys.path:  # Modules in the current folder come first.
        sys.path.insert(0, "")
    return _instance(load_author(name, f"the {kind}"), name, kind)


def load_allowed(modules: Collection[str]) -> Load:
    """Return a function that loads parts of these modules only. A part of another module stays an `UnloadedPart`; for a
    part that one of these modules imports from another package, the function raises UsageError.
    """

    def load(name: str, kind: str) -> Any:
        module = module_of(name)
        if module not in modules:
            return UnloadedPart(name)
        definition = load_author(name, f"the {kind}")
        defined_in = getattr(definition, "__module__", None) or type(definition).__module__
        if defined_in.partition(".")[0] != module.partition(".")[0]:
            raise UsageError(f"the {kind} {name!r} is defined in {defined_in}, which --allow-code does not name")
        return _instance(definition, name, kind)

    return load


def find_part(table: Mapping[str, Any], name: Any, kind: str, load: Load = load_part) -> Any:
    """Return the part with this name: from the table, from an installed package, or from `load` for `module:name`."""
    name = str(name)
    if name in table:
        return table[name]() if isinstance(table[name], type) else table[name]
    registered = registered_parts(kind)
    if name in registered:
        return _instance(load_author(registered[name].value, f"the {kind}"), name, kind)
    if ":" in name:
        return load(name, kind)
    names = [*table, *registered]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ConfigError(f"{kind} is {name!r}; {hint}expected one of {', '.join(names)}, or module:name for your own")


def part_name(table: Mapping[str, Any], value: Any, kind: str) -> str:
    """Return the name with which `find_part` finds this part again. Raise `ConfigError` if the part has none."""
    if isinstance(value, UnloadedPart):
        return value.name
    if isinstance(value, str):
        return value
    definition: Any = value if isinstance(value, FunctionType) else type(value)
    for name, built_in in table.items():
        if built_in is definition:
            return name
    module, qualified = definition.__module__, definition.__qualname__
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if module == "__main__" and main:  # The command line finds it by the name of the script.
        module = Path(main).stem
    for name, entry in registered_parts(kind).items():
        if entry.value == f"{module}:{qualified}":
            return name
    if not qualified.isidentifier() or module == "functools":
        raise ConfigError(
            f"{kind} is {qualified} of {module}, which has no name to be found by when the run is resumed; define it "
            "at the top level of a module, as a function or a dataclass"
        )
    if not hasattr(definition, "__dataclass_fields__") and getattr(value, "__dict__", None) and value is not definition:
        raise ConfigError(
            f"{kind} is a {qualified}, whose settings cannot be written into the run; make it a dataclass"
        )
    return f"{module}:{qualified}"


def check_part(table: Mapping[str, Any], value: Any, kind: str) -> None:
    """Raise `ConfigError` if a value cannot be a part of this kind."""
    if isinstance(value, type):
        raise ConfigError(f"{kind} is the class {value.__name__}; expected an instance, such as {value.__name__}()")
    kinds = tuple(part for part in table.values() if isinstance(part, type))
    if not isinstance(value, kinds) and not callable(value) and (not isinstance(value, str) or value not in table):
        raise ConfigError(f"{kind} is {value!r}; expected one of {', '.join(table)}, or a function of your own")
    if kind in ARGUMENTS and callable(value) and not isinstance(value, (UnloadedPart, *kinds)):
        _check_arguments(value, kind)


def _check_arguments(part: Any, kind: str) -> None:
    """Raise `ConfigError` if a part cannot be called as parts of its kind are. A part without a signature passes."""
    try:
        expected = signature(part)
    except (TypeError, ValueError):
        return
    try:
        expected.bind(*ARGUMENTS[kind])
    except TypeError as error:
        name = getattr(part, "__qualname__", type(part).__qualname__)
        raise ConfigError(
            f"{kind} is {name}{expected}, which cannot be called with {len(ARGUMENTS[kind])} arguments ({error}); "
            f"expected the arguments ({', '.join(ARGUMENTS[kind])})"
        ) from error


def registered_parts(kind: str) -> dict[str, EntryPoint]:
    """Return the parts of a kind that installed packages register, by name."""
    prefix = f"{kind}."
    registered = entry_points(group=ENTRY_POINTS)
    return {entry.name.removeprefix(prefix): entry for entry in registered if entry.name.startswith(prefix)}


def module_of(name: str) -> str:
    """Return the module in a part's name `module:name`."""
    return name.partition(":")[0]


def _instance(definition: Any, name: str, kind: str) -> Any:
    """Return `definition` itself if it is a function; if it is a class, return an instance with default settings."""
    if not isinstance(definition, type):
        return definition
    try:
        return definition()
    except TypeError as error:
        raise ConfigError(
            f"the {kind} {name!r} cannot be created without arguments ({error}); give its fields defaults"
        ) from error
