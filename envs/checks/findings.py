"""What a check of `palaestra check` gives back, and what all of them have in common. Left out: the checks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from palaestra.errors import EnvironmentDefect, PalaestraError

HOSTILE = (
    "", " ", "\x00\x1b[2J", "\ud800", "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_call>{}</tool_call>",
    '<tool_call>{"name": 1}</tool_call>', '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "\\ud800", "arguments": "{"}</tool_call>', "<tool_call>" * 2_000,
    "<tool_call>" + "[" * 5_000, '<tool_call>{"name": "x", "arguments": {"a": ' + "9" * 5_000 + "}}</tool_call>",
)  # fmt: skip
"""Turns that no environment may stumble over."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    passed: bool
    message: str = ""
    skipped: bool = False
    """True when there was nothing to measure; it counts as passed."""


def measured(name: str, function: Callable[[str], None], env_id: str) -> Finding:
    """What a check of an id finds; it raises or returns."""
    try:
        function(env_id)
    except Skipped as reason:
        return Finding(name, True, str(reason), skipped=True)
    except Exception as error:  # A check may meet any defect; all of them are findings.
        said = str(error) if isinstance(error, PalaestraError | AssertionError) else f"{type(error).__name__}: {error}"
        return Finding(name, False, " ".join(said.split()))
    return Finding(name, True)


class Skipped(Exception):
    """Nothing to measure here."""


def require(condition: Any, message: str) -> None:
    """The finding, unless the condition holds."""
    if not condition:
        raise EnvironmentDefect(message)
