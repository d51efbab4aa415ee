"""What an episode leaves behind for the next one, by name: values that outlive it and have changed.

What a tool sets on `self` dies with its episode. What lives on: what a constructor made, attributes of a toolkit that
its `start` does not set, attributes of classes, and globals of the author's module. Left out: whether any of it shows
in the next episode (`check`), and values inside objects of other classes.
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
"""By the name of what lives on: what it holds, and what to change where an episode changes that."""


def living(machine: Machine) -> Left:
    """All that outlives the episode that has just begun."""
    author = machine.spec.author
    found: dict[str, tuple[str, str]] = {}
    kits = list({type(kit).__name__: kit for _, kit in machine.kits.made or ()}.values())
    owners: list[tuple[Any, str, str]] = [
        (author, "self", f"it was made in __init__, which runs once for all episodes: {_FIRST_TOOL}")
    ]
    owners += [(kit, type(kit).__name__, f"set it in {type(kit).__name__}.start") for kit in kits]
    for cls in _written(type(author), *map(type, kits)):
        owners.append((cls, cls.__name__, f"it belongs to the class, and so to all episodes: {_FIRST_TOOL}"))
        if (module := sys.modules.get(cls.__module__)) is not None:
            owners.append((module, cls.__module__, f"it is a global, and so of all episodes: {_FIRST_TOOL}"))
    for owner, name, fix in owners:
        for attribute, value in list(vars(owner).items()):
            if not attribute.startswith("__") and (held := _held(value)) is not None:
                found.setdefault(f"{name}.{attribute}", (held, fix))  # An instance's comes before its class's.
    return found


def changed(before: Left, after: Left) -> Iterator[tuple[str, str]]:
    """What the episodes between two of these have changed, and what to do about it."""
    for name, (held, fix) in after.items():
        if before.get(name, ("",))[0] != held:
            yield name, fix


def _written(*classes: type) -> list[type]:
    """The classes that the author wrote, of these and what they build on."""
    ours = {*Game.__mro__, *Toolkit.__mro__, *ToolEnv.__mro__}
    return list(dict.fromkeys(one for cls in classes for one in cls.__mro__ if one not in ours))


def _held(value: Any) -> str | None:
    """What a value holds, as text; None where that cannot be told."""
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, _HOLDING):
        return repr(value) if len(value) < _MAX_SHOWN else str(len(value))
    return repr(value) if isinstance(value, (*_PLAIN, count)) else None
