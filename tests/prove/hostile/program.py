"""What a hostile program is: a function whose source is sent, what stops it, and what must become of it."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from palaestra.envs.sandboxes import Result

PROGRAMS: dict[str, "Program"] = {}
PRELUDE = """
import ctypes
ctypes.CDLL(None).prctl(15, {mark!r}.encode(), 0, 0, 0)
"""
"""What it leaves behind can be told from what the sandbox itself is made of."""


@dataclass(frozen=True)
class Program:
    """One hostile program."""

    name: str
    purpose: str
    source: str
    guard: str
    """The capability that stops it; where that is absent it may get through. Empty: every sandbox must."""
    control: str
    """How it gets through without a sandbox: as `root` or as any `user` it prints what it should not know; it
    `outlives` its time or its end; it `crashes`; or it does so on some machines only (`core_pattern`, `io_uring`,
    `old_calls`).
    """
    seconds: float = 30.0
    """For those that end by themselves, which they do at once; a machine that is busy with others may take longer."""
    late: float = 20.0
    """Seconds after its time in which its run must have returned. Most would go on for ever."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its Result; a tuple holds what is allowed."""
    check: Callable[[Result], str] = lambda result: ""
    """A complaint about its Result, or nothing."""

    def code(self, given: Mapping[str, Any]) -> str:
        """What is sent."""
        return f"{PRELUDE.format(mark=given['mark'])}\n{self.source}\n{self.name}({dict(given)!r})\n"


def hostile(guard: str, *, control: str = "user", **rest: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a program of a function."""

    def take(function: Callable[..., Any]) -> Callable[..., Any]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        purpose = (function.__doc__ or "").strip()
        assert purpose, f"{function.__name__} does not say what it tries"
        assert function.__name__ not in PROGRAMS, function.__name__
        program = Program(function.__name__, purpose, ast.unparse(tree), guard, control, **rest)
        PROGRAMS[program.name] = program
        return function

    return take
