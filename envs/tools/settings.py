"""Checks of what an author sets: settings when a toolkit's class is made, and files when an episode begins.

A mistake in them must not reach the agent, which cannot correct it. Left out: limits that are options of a backend.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from math import inf
from pathlib import PurePosixPath
from typing import Any

from palaestra.envs.sandboxes import Limits
from palaestra.envs.sandboxes.arguments import files_of
from palaestra.envs.sandboxes.capabilities import guards_of
from palaestra.envs.sandboxes.runner.files import DEPTH, NAME_BYTES
from palaestra.errors import EnvironmentDefect, UsageError

_ALIKE = 0.8
"""Similarity above which a name counts as a misspelt setting, such as `max_call` for `max_calls`."""


def check_budgets(kit: Any) -> None:
    """Raise EnvironmentDefect for budgets that allow no call, and for misspelt settings."""
    calls = kit.max_calls
    counted = isinstance(calls, int) and not isinstance(calls, bool) and calls > 0
    _expect(kit, "max_calls", calls is None or counted, "a whole number above 0, or None for any number of calls")
    _expect(
        kit, "max_seconds", kit.max_seconds is None or _timed(kit.max_seconds), "a number of seconds above 0, or None"
    )
    _expect(kit, "call_seconds", _timed(kit.call_seconds), "a number of seconds above 0")
    _refuse_misspelt(kit)


def _timed(seconds: Any) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < inf


def check_settings(kit: Any) -> None:
    """Raise EnvironmentDefect if a class that runs programs has settings with which every call would fail."""
    for name in ("stateful", "keeps_variables"):
        _expect(kit, name, isinstance(getattr(kit, name), bool), "True or False")
    if not isinstance(kit.limits, Limits):
        raise EnvironmentDefect(f"{kit.__name__}.limits is {kit.limits!r}; expected Limits, as in Limits(seconds=5)")
    if not isinstance(kit.require, property):
        try:
            guards_of(kit.require)
        except UsageError as error:
            raise EnvironmentDefect(f"{kit.__name__}.require: {error}") from None


def _expect(kit: Any, name: str, fits: bool, expected: str) -> None:
    value = getattr(kit, name)
    if not fits and not isinstance(value, property):  # One that depends on the instance is a property.
        raise EnvironmentDefect(f"{kit.__name__}.{name} is {value!r}; expected {expected}")


def _refuse_misspelt(kit: Any) -> None:
    """Raise EnvironmentDefect if the class has an attribute whose name is almost the name of a setting."""
    bases = [base for base in kit.__mro__[1:] if base.__module__.startswith("palaestra.")]
    setting_names = sorted({name for base in bases for name in vars(base).get("__annotations__", ()) if name[0] != "_"})
    for name, value in vars(kit).items():
        plain = isinstance(value, bool | int | float | str | tuple | list | dict | Limits | None)
        if name[0] == "_" or not plain or any(hasattr(base, name) for base in kit.__mro__[1:]):
            continue
        if close := get_close_matches(name, setting_names, n=1, cutoff=_ALIKE):
            raise EnvironmentDefect(
                f"{kit.__name__}.{name} is no setting; is {close[0]} meant? An attribute of your own needs a name that "
                "is less alike"
            )


def check_files(files: Any, owner: str, limits: Limits) -> dict[str, bytes]:
    """Return the files by path; raise EnvironmentDefect, which names the class `owner`, if one is invalid."""
    if not isinstance(files, Mapping):
        raise EnvironmentDefect(f"{owner}.files gave a {type(files).__name__}; expected a dict of paths to bytes")
    try:
        contents = files_of(files, limits)
    except UsageError as error:
        raise EnvironmentDefect(f"{owner}.files: {error}") from None
    for path in contents:
        if fault := _fault(path, contents):
            raise EnvironmentDefect(f"{owner}.files: {path[:80]!r} {fault}")
    return contents


def _fault(path: str, files: Mapping[str, bytes]) -> str:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or path.startswith("/") or path.endswith("/") or ".." in names or "\0" in path:
        return "is no path of a file below the working folder; expected one such as data/orders.csv"
    if len(names) > DEPTH or any(len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES for name in names):
        return f"is too long; a path may have {DEPTH} names of {NAME_BYTES} bytes"
    return "lies in another file" if any(str(folder) in files for folder in PurePosixPath(path).parents) else ""
