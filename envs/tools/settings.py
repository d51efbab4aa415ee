"""The settings of a toolkit's class, looked at when it is made: a mistake in them is its author's, and no agent's.

Left out: the files that it lays out (`laid_out`), which differ from task to task, and limits given with a place.
"""

from difflib import get_close_matches
from math import inf
from typing import Any

from palaestra.envs.sandboxes import Limits
from palaestra.envs.sandboxes.capabilities import guards_of
from palaestra.errors import EnvironmentDefect, UsageError

_ALIKE = 0.8
"""Names that are as much alike as `max_call` and `max_calls` are taken for one another."""


def check_settings(kit: Any) -> None:
    """Refuse a class whose settings would fail in every call, or that nobody would read."""
    for name in ("stateful", "keeps_variables"):
        _expect(kit, name, isinstance(getattr(kit, name), bool), "True or False")
    if not isinstance(kit.limits, Limits):
        raise EnvironmentDefect(f"{kit.__name__}.limits is {kit.limits!r}; expected Limits, as in Limits(seconds=5)")
    calls, seconds = kit.max_calls, kit.max_seconds
    counted = isinstance(calls, int) and not isinstance(calls, bool) and calls > 0
    _expect(kit, "max_calls", calls is None or counted, "a whole number above 0, or None for any number of calls")
    timed = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < inf
    _expect(kit, "max_seconds", seconds is None or timed, "a number of seconds above 0, or None")
    if not isinstance(kit.require, property):
        try:
            guards_of(kit.require)
        except UsageError as error:
            raise EnvironmentDefect(f"{kit.__name__}.require: {error}") from None
    _refuse_misspelt(kit)


def _expect(kit: Any, name: str, fits: bool, expected: str) -> None:
    value = getattr(kit, name)
    if not fits and not isinstance(value, property):  # One that depends on the instance is a property.
        raise EnvironmentDefect(f"{kit.__name__}.{name} is {value!r}; expected {expected}")


def _refuse_misspelt(kit: Any) -> None:
    """An attribute of the class's own that is all but named like a setting."""
    bases = [base for base in kit.__mro__[1:] if base.__module__.startswith("palaestra.")]
    known = sorted({name for base in bases for name in vars(base).get("__annotations__", ()) if name[0] != "_"})
    for name, value in vars(kit).items():
        plain = isinstance(value, bool | int | float | str | tuple | list | dict | Limits | None)
        if name[0] == "_" or not plain or any(hasattr(base, name) for base in kit.__mro__[1:]):
            continue
        if close := get_close_matches(name, known, n=1, cutoff=_ALIKE):
            raise EnvironmentDefect(
                f"{kit.__name__}.{name} is no setting; is {close[0]} meant? An attribute of your own needs a name that "
                "is less alike"
            )
