"""Findings of `palaestra check`, and functions that all checks share. Left out: the checks.

A fault of an environment (a reward that raises, a toolkit that does not start) stops most checks. The first check that
meets it reports it; the others say that they were not reached.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from traceback import walk_tb
from typing import Any

from palaestra.authorship import foreign_line
from palaestra.causes import without_varying
from palaestra.envs.core import scoring
from palaestra.errors import Broken, EnvironmentDefect, MissingExtra, PalaestraError

HOSTILE = (
    "", " ", "\x00\x1b[2J", "\ud800", "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_call>{}</tool_call>",
    '<tool_call>{"name": 1}</tool_call>', '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "\\ud800", "arguments": "{"}</tool_call>', "<tool_call>" * 2_000,
    "<tool_call>" + "[" * 5_000, '<tool_call>{"name": "x", "arguments": {"a": ' + "9" * 5_000 + "}}</tool_call>",
)  # fmt: skip
"""Turns that must break no environment."""
_OTHER_THREAD = "SQLite objects created in a thread"
_GROUNDLESS = ("", "")
"""The key of the check that left nothing to measure."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    name: str
    passed: bool
    message: str = ""
    skipped: bool = False
    """True when there was nothing to measure, or another finding reports the fault; this is not a failure."""


class Skipped(Exception):
    """Raised by a check that has nothing to measure."""


class Noted(Exception):
    """Raised by a check that found nothing wrong, but has a note for the author."""


class Unmet(EnvironmentDefect):
    """Raised if an environment does not meet a check. Each such fault is reported, even if another check reported it
    too."""


class Groundless(Unmet):
    """Raised for a fault after which the other checks have nothing to measure."""


def require(condition: Any, message: str, kind: type[Unmet] = Unmet) -> None:
    """Raise `kind(message)`, the finding, unless the condition holds."""
    if not condition:
        raise kind(message)


def measure(
    checks: Mapping[str, Callable[[Any], None]], subject: Any, on_check: Callable[[str], None] = lambda name: None
) -> list[CheckFinding]:
    """Run every check on a subject, after `on_check` with its name, and return the findings. Failures of tools are kept
    out of the log."""
    log = logging.getLogger("palaestra.envs")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        reported_by: dict[tuple[str, str], str] = {}
        findings: list[CheckFinding] = []
        for name, function in checks.items():
            on_check(name)
            findings.append(_measured(name, function, subject, reported_by))
        return findings
    finally:
        log.setLevel(level)


def _measured(
    name: str, function: Callable[[Any], None], subject: Any, reported_by: dict[tuple[str, str], str]
) -> CheckFinding:
    """Run one check and return its finding. `reported_by` maps each fault to the name of the first check that met
    it."""
    if _GROUNDLESS in reported_by:
        return _unreached(name, reported_by[_GROUNDLESS])
    try:
        function(subject)
    except Noted as note:
        return CheckFinding(name, True, str(note))
    except Skipped as reason:
        return CheckFinding(name, True, str(reason), skipped=True)
    except Exception as error:  # A check may meet any defect; all of them are findings.
        if isinstance(error, Groundless):
            reported_by[_GROUNDLESS] = name
        first = name if isinstance(error, Unmet) else reported_by.setdefault(_fault(error), name)
        if first != name and isinstance(error, Broken):  # A fault that breaks two checks breaks all, one timeout each.
            reported_by[_GROUNDLESS] = first
        missing = isinstance(_root(error), MissingExtra)
        if first != name:
            return _unreached(name, first)
        return CheckFinding(name, missing, _error_text(error), skipped=missing)
    return CheckFinding(name, True)


def difference(left: Any, right: Any, where: str = "") -> str:
    """Describe the first place at which two values of the same type differ, with both values; return "" if they are
    equal."""
    if type(left) is type(right) and is_dataclass(left):
        names = [field.name for field in fields(left) if field.compare]
        pairs = [(f"{where}.{name}", getattr(left, name), getattr(right, name)) for name in names]
    elif isinstance(left, Mapping) and isinstance(right, Mapping) and left.keys() == right.keys():
        pairs = [(f"{where}[{key!r}]" if where else str(key), left[key], right[key]) for key in left]
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        pairs = [(f"{where}[{index}]", *pair) for index, pair in enumerate(zip(left, right, strict=True))]
    else:
        return "" if left == right else f"{where} is {_short(left)} and {_short(right)}"
    differences = (difference(left_part, right_part, path) for path, left_part, right_part in pairs)
    return next(filter(None, differences), "")


def require_same(left: Any, right: Any, where: str, problem: str, advice: str = "", kind: type[Unmet] = Unmet) -> None:
    """Raise the finding `problem`, with the first difference and the advice, unless the values are equal."""
    if text := difference(left, right, where):
        raise kind(f"{problem}: {text}" + (f"; {advice}" if advice else ""))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _unreached(name: str, first: str) -> CheckFinding:
    return CheckFinding(name, True, f"not reached, for what {first!r} says", skipped=True)


def advice_on(error: BaseException, otherwise: str = "") -> str:
    """Return what to change where an author's code raised `error`; `otherwise` if nothing is known of it."""
    if str(error).startswith(_OTHER_THREAD):
        return (
            "an episode's tools, starts and ends run in several threads: open it with sqlite3.connect(..., "
            "check_same_thread=False) and hold a lock around each use, or open and close it in the tool"
        )
    return otherwise


def _root(error: BaseException) -> BaseException:
    """Return the first exception in the chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _fault(error: Exception) -> tuple[str, str]:
    """Return a key that is equal for two exceptions of the same fault."""
    root = _root(error)
    return type(root).__name__, _place(root) or without_varying(str(root))


def _error_text(error: Exception) -> str:
    """Return the message in one line, with the author's line of code if there is one."""
    root = _root(error)
    place = _place(root)
    if isinstance(root, MissingExtra):
        return str(root)
    if isinstance(error, Broken):
        message = f"an episode ended broken: {error}"
    elif isinstance(error, PalaestraError) or (isinstance(error, AssertionError) and not place):
        message = str(error)
    else:  # Gymnasium's checker wraps our TypeError in a message of its own.
        message = f"{type(root).__name__}: {root}"
    message = f"{message} ({place})" if place and place not in message else message
    advice = advice_on(root)
    return " ".join((f"{message}; {advice}" if advice and advice not in message else message).split())


def _place(error: BaseException) -> str:
    """Return the author's line that raised the error, or the first line of a reward with a refused result, or ""."""
    if line := foreign_line(error):
        return str(line)
    frames: Sequence[Any] = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not frames or frames[-1].f_globals.get("__name__") != scoring.__name__:
        return ""
    for frame in reversed(frames):  # It has returned, so no frame is its own; the machine's `spec` has its owner.
        author = getattr(frame.f_locals.get("spec"), "author", None)
        code = getattr(getattr(type(author), "reward", None), "__code__", None)
        if code is not None:
            return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"
    return ""
