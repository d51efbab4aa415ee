"""Is what a class sets also read? A misspelt setting is an attribute like any other, and changes nothing.

Only what nobody reads is complained about, and only where it resembles a setting: an author may keep what he likes on
his class. Left out: what a setting may be (`envs.core.settings`).
"""

import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import Any

from palaestra.envs.checks.findings import require
from palaestra.envs.core.signature import inner_function

RESEMBLES = 0.8
"""How much two names must have in common, from 0 to 1, for one to be taken for the other."""


def require_known(kind: type, base: type, settings: Sequence[str]) -> None:
    """No attribute of a class that an author wrote upon `base` is a setting with its name misspelt."""
    used = names_used(kind, base)
    for author in _authors(kind, base):
        for name, value in vars(author).items():
            if name.startswith("_") or hasattr(base, name) or name in used or _is_code(value):
                continue
            words = set(name.split("_"))
            near = get_close_matches(name, settings, 1, RESEMBLES)
            near += [setting for setting in settings if words.issuperset(setting.split("_"))]
            require(
                not near, f"{author.__name__}.{name} is set, and nobody reads it; is {next(iter(near), '')!r} meant?"
            )


def require_existing(env: Any, base: type) -> None:
    """What a class names in `shared` is an attribute, or may become one."""
    used = names_used(type(env), base)
    for name in env.shared:
        if not hasattr(env, name) and name not in used:
            near = get_close_matches(name, [*vars(env), *used], 1)
            hint = f"; is {near[0]!r} meant?" if near else ""
            require(False, f"{type(env).__name__}.shared names {name!r}, and there is no such attribute{hint}")


def names_used(kind: type, base: type) -> set[str]:
    """The names and texts in the code of these classes, and in what else stands in their modules, such as toolkits."""
    found: set[str] = set()
    for author in _authors(kind, base):
        beside = vars(sys.modules.get(author.__module__, author)).values()
        for owner in (author, *(one for one in beside if _stands_beside(one, author, base))):
            for value in vars(owner).values() if isinstance(owner, type) else [owner]:
                for code in _codes(value):
                    found |= {*code.co_names, *(one for one in code.co_consts if isinstance(one, str))}
    return found


def _authors(kind: type, base: type) -> list[type]:
    return [one for one in kind.__mro__ if one not in base.__mro__]


def _stands_beside(value: Any, author: type, base: type) -> bool:
    """A function or class of the same module; no other environment, whose attributes are its own."""
    if not isinstance(value, type | FunctionType) or value.__module__ != author.__module__:
        return False
    return not (isinstance(value, type) and issubclass(value, base))


def _is_code(value: Any) -> bool:
    return isinstance(value, type) or next(_codes(value), None) is not None


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a function, method or property, and that of the functions inside it."""
    function = inner_function(value) or value
    waiting = [function.__code__] if isinstance(function, FunctionType) else []
    while waiting:
        code = waiting.pop()
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
        yield code
