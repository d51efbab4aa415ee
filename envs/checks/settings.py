"""Checks of misspelt settings, and of descriptions that the agent needs to call a tool.

A misspelt setting is an attribute like any other, and changes nothing. An attribute is reported only where no code
reads it and its name resembles a setting: an author may keep any attributes on a class. Left out: allowed values of a
setting (`envs.core.declared`), and errors that a decorator raises when the class is made (`envs.core.tool`).
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import Any

from palaestra.envs.checks.findings import require
from palaestra.envs.core.signature import inner_function
from palaestra.envs.core.spec import Spec
from palaestra.envs.core.toolkit import tools_of

RESEMBLES = 0.8
"""Similarity of two names, from 0 to 1, from which on one is taken for the other misspelt."""


def require_known(kind: type, base: type, settings: Sequence[str]) -> None:
    """Require that no attribute of an author's subclass of `base` is a setting with its name misspelt."""
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


def require_given(spec: Spec) -> None:
    """Require that every tool of a game, including those of toolkits, belongs to a seat."""
    author = spec.author
    kits = [name for make in author.toolkits for name in tools_of(make)]
    seat_tool_names = {name for names in author.seat_tools.values() for name in names}
    for name in (*author._tools, *kits):
        require(
            spec.solo or name in seat_tool_names,
            f"no seat may call the tool {name!r}; give it to one: seat_tools = {{SEAT: ({name!r},)}}",
        )


def require_told(schema: Mapping[str, Any], whose: str) -> None:
    """Require that the tool has a description, a name that every model can call, and types for its parameters."""
    name = schema["function"]["name"]
    tool = f"tool {name!r}{whose}"
    require(schema["function"]["description"], f"{tool} has no description; write a docstring, the agent reads it")
    require(name.isidentifier(), f"tool name {name!r}{whose} is no identifier; not every model can call it")
    for parameter, description in schema["function"]["parameters"]["properties"].items():
        require(
            set(description) - {"default"},
            f"the parameter {parameter!r} of {tool} takes anything, so the agent is told nothing of it; write a type "
            f"such as {parameter}: str, or describe it in the docstring",
        )


def names_used(kind: type, base: type) -> set[str]:
    """Return the names and texts in the code of these classes and of others in their modules, such as toolkits."""
    used_names: set[str] = set()
    for author in _authors(kind, base):
        beside = vars(sys.modules.get(author.__module__, author)).values()
        for owner in (author, *(value_beside for value_beside in beside if _stands_beside(value_beside, author, base))):
            for value in vars(owner).values() if isinstance(owner, type) else [owner]:
                for code in _codes(value):
                    used_names |= {
                        *code.co_names,
                        *(value_beside for value_beside in code.co_consts if isinstance(value_beside, str)),
                    }
    return used_names


def _authors(kind: type, base: type) -> list[type]:
    return [cls for cls in kind.__mro__ if cls not in base.__mro__]


def _stands_beside(value: Any, author: type, base: type) -> bool:
    """Return whether a value is a function or class of the same module, but not another environment."""
    if not isinstance(value, type | FunctionType) or value.__module__ != author.__module__:
        return False
    return not (isinstance(value, type) and issubclass(value, base))


def _is_code(value: Any) -> bool:
    return isinstance(value, type) or next(_codes(value), None) is not None


def _codes(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function, method or property, and of the functions inside it."""
    function = inner_function(value) or value
    waiting = [function.__code__] if isinstance(function, FunctionType) else []
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield code
