"""Finds state that an episode leaves for the next one: values, by name, that outlive the episode and that it changed.

Attributes that a tool sets on `self` end with its episode. These values outlive it: attributes that a constructor made,
attributes of a toolkit that its `start` does not set, attributes of classes, and globals of the author's module. Left
out: whether any of them changes the next episode (`check`), and values inside objects of other classes.
"""

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from palaestra.envs.core.author import Game, ToolEnv
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.toolkit import Toolkit

_PLAIN = (bool, int, float, str, bytes, type(None))
_HOLDING = (list, tuple, dict, set, frozenset, bytearray, deque, np.ndarray)
_MAX_SHOWN = 10_000
_FIRST_TOOL = "make it in the first tool that needs it, or in a toolkit's start"
Left = Mapping[str, tuple[str, str]]
"""Value as text, and the advice where an episode changes it, by the name of what outlives the episode."""


def living(machine: Machine) -> Left:
    """Return all values, by name, that will outlive the episode that has just begun."""
    author = machine.spec.author
    values_by_name: dict[str, tuple[str, str]] = {}
    kits = list({type(kit).__name__: kit for _, kit in machine.kits.instances or ()}.values())
    owners: list[tuple[Any, str, str]] = [
        (author, "self", f"it was made in __init__, which runs once for all episodes: {_FIRST_TOOL}")
    ]
    owners += [(kit, type(kit).__name__, f"set it in {type(kit).__name__}.start") for kit in kits]
    for cls in _author_classes(type(author), *map(type, kits)):
        owners.append((cls, cls.__name__, f"it belongs to the class, and so to all episodes: {_FIRST_TOOL}"))
        if (module := sys.modules.get(cls.__module__)) is not None:
            owners.append((module, cls.__module__, f"it is a global, and so of all episodes: {_FIRST_TOOL}"))
    for owner, name, fix in owners:
        for attribute, value in list(vars(owner).items()):
            if not attribute.startswith("__") and (text := _content(value)) is not None:
                values_by_name.setdefault(f"{name}.{attribute}", (text, fix))  # An instance's comes before its class's.
    return values_by_name


def changed(before: Left, after: Left) -> Iterator[tuple[str, str]]:
    """Yield the name of each value that changed between two calls of `living`, with the advice for it."""
    for name, (text, fix) in after.items():
        if before.get(name, ("",))[0] != text:
            yield name, fix


def _author_classes(*classes: type) -> list[type]:
    """Return the classes that the author wrote, among these classes and their bases."""
    library_classes = {*Game.__mro__, *Toolkit.__mro__, *ToolEnv.__mro__}
    return list(dict.fromkeys(base for cls in classes for base in cls.__mro__ if base not in library_classes))


def _content(value: Any) -> str | None:
    """Return the content of a value as text; None for objects of other classes."""
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, _HOLDING):
        return repr(value) if len(value) < _MAX_SHOWN else str(len(value))
    return repr(value) if isinstance(value, (*_PLAIN, count)) else None
