"""Is what a class sets also read, and is the agent told what it needs to call a tool?

A misspelt setting is an attribute like any other, and changes nothing. Only what nobody reads is complained about, and
only where it resembles a setting: an author may keep what he likes on his class. Left out: what a setting may be
(`envs.core.declared`), and what a decorator refuses when the class is made (`envs.core.tool`).
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


def require_given(spec: Spec) -> None:
    """Every tool of a game, its toolkits' too, is some seat's."""
    author = spec.author
    kits = [name for make in author.toolkits for name in tools_of(make)]
    given = {name for names in author.seat_tools.values() for name in names}
    for name in (*author._tools, *kits):
        require(
            spec.solo or name in given,
            f"no seat may call the tool {name!r}; give it to one: seat_tools = {{SEAT: ({name!r},)}}",
        )


def require_told(schema: Mapping[str, Any], whose: str) -> None:
    """The tool has a description and a name that every model can call, and says of each parameter what it takes."""
    name = schema["function"]["name"]
    tool = f"tool {name!r}{whose}"
    require(schema["function"]["description"], f"{tool} has no description; write a docstring, the agent reads it")
    require(name.isidentifier(), f"tool name {name!r}{whose} is no identifier; not every model can call it")
    for parameter, told in schema["function"]["parameters"]["properties"].items():
        require(
            set(told) - {"default"},
            f"the parameter {parameter!r} of {tool} takes anything, so the agent is told nothing of it; write a type "
            f"such as {parameter}: str, or describe it in the docstring",
        )


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
