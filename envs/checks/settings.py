"""Checks of misspelt settings, and of descriptions that the agent needs to call a tool.

A misspelt setting is an attribute like any other, and changes nothing. An attribute is reported only where the class
does not read it and its name resembles a setting: an author may keep any attributes on a class. Left out: allowed
values of a setting (`envs.core.declared`), and errors that a decorator raises when the class is made
(`envs.core.tool`).
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from types import CodeType, FunctionType
from typing import Any

from palaestra.envs.checks.findings import Unmet, require
from palaestra.envs.core.signature import inner_function, read_docstring
from palaestra.envs.core.spec import Spec
from palaestra.envs.core.tool import Tool
from palaestra.envs.core.toolkit import tools_of
from palaestra.errors import did_you_mean

RESEMBLES = 0.8
"""Similarity of two names, from 0 to 1, from which on one is taken for the other misspelt."""


def require_known(kind: type, base: type, settings: Sequence[str]) -> None:
    """Require that no attribute of an author's subclass of `base` is a setting with its name misspelt."""
    authors = [cls for cls in kind.__mro__ if cls not in base.__mro__]
    codes = [code for author in authors for value in vars(author).values() for code in _codes(value)]
    used_names = {name for code in codes for name in code.co_names}
    for author in authors:
        for name, value in vars(author).items():
            if name.startswith("_") or hasattr(base, name) or name in used_names:
                continue
            if isinstance(value, type) or any(_codes(value)):
                continue
            words = set(name.split("_"))
            near = get_close_matches(name, settings, 1, RESEMBLES)
            near += [setting for setting in settings if words.issuperset(setting.split("_"))]
            if near:
                raise Unmet(f"{author.__name__}.{name} is set, and nobody reads it; is {near[0]!r} meant?")


def require_given(spec: Spec) -> None:
    """Require that every tool of a game, including those of toolkits, belongs to a seat."""
    author = spec.author
    kits = [name for make in spec.toolkits for name in tools_of(make)]
    seat_tool_names = {name for names in author.seat_tools.values() for name in names}
    for name in (*author._tools, *kits):
        require(
            spec.solo or name in seat_tool_names,
            f"no seat may call the tool {name!r}; give it to one: seat_tools = {{SEAT: ({name!r},)}}",
        )


def require_told(offered: Tool, whose: str) -> None:
    """Require that the tool has a description, a name that every model can call, and types for its parameters, and that
    its docstring describes no other parameters."""
    schema, name = offered.schema, offered.name
    tool = f"tool {name!r}{whose}"
    require(schema["function"]["description"], f"{tool} has no description; write a docstring, the agent reads it")
    takes = schema["function"]["parameters"]["properties"]
    for described in read_docstring(offered.function.__doc__)[1]:
        require(
            described in takes,
            f"the docstring of {tool} describes the parameter {described!r}, which it does not take"
            f"{did_you_mean(described, takes)}",
        )
    require(name.isidentifier(), f"tool name {name!r}{whose} is no identifier; not every model can call it")
    for parameter, description in takes.items():
        require(
            set(description) - {"default"},
            f"the parameter {parameter!r} of {tool} takes anything, so the agent is told nothing of it; write a type "
            f"such as {parameter}: str, or describe it in the docstring",
        )


def _codes(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function, method or property, and of the functions inside it."""
    function = inner_function(value) or value
    waiting = [function.__code__] if isinstance(function, FunctionType) else []
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        yield code
