"""Checks of the limits, texts, seats and toolkits that an author's class declares, made when the class is defined.

Left out: reward parts (`scoring`), tools (`tool`), and attributes that are not settings (`envs.checks.settings`).
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from numbers import Integral
from typing import Any

from palaestra import formats
from palaestra.envs.core.scoring import check_declared, is_number
from palaestra.envs.core.tasks import check_split
from palaestra.envs.core.tool import check_attributes
from palaestra.envs.core.tool_names import ToolNames, settled
from palaestra.envs.core.toolkit import Toolkit, check_toolkits, merge
from palaestra.errors import EnvironmentDefect, UsageError

WHOLE = "all"
"""Name of the split that is a whole file of tasks."""
DEADLINES: Mapping[str, float] = {
    "start": 60.0, "reward": 60.0, "close": 10.0, "final": 10.0, "user": 60.0, "run": 120.0,
}  # fmt: skip
"""Default timeouts, in seconds."""

_BY_SEAT = ("system", "seat_tools", "chance", "ceiling")
"""Values that a game declares by seat."""


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _are_deadlines(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        name in DEADLINES and is_number(seconds) and seconds > 0 for name, seconds in value.items()
    )


_COUNT = (_is_count, "at least 1, a whole number")
_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_turns": (_is_count, "at least 1, a whole number: an answer takes a turn"),
    "max_turn_calls": _COUNT,
    "max_result_chars": _COUNT,
    "max_kept_chars": _COUNT,
    "deadlines": (_are_deadlines, f"seconds above 0 by name, of {', '.join(DEADLINES)}: {{'reward': 300}}"),
    "chance": (lambda value: is_number(value) and 0 <= value <= 1, "the success rate of guessing, from 0 to 1"),
    "ceiling": (lambda value: value is None or is_number(value), "a finite number, or None"),
}
"""Check of each declared value, with the expected value in words."""


def check_class(cls: Any, base: type) -> None:
    """Raise EnvironmentDefect if a class declares invalid values; `base` is ToolEnv."""
    check_attributes(cls, cls._tools, base)
    check_declared(cls.__name__, cls.parts)
    check_values(cls)
    formats.get(cls.format)
    check_toolkits(cls.__name__, cls.toolkits)
    kits = settled([kit for kit in cls.toolkits if isinstance(kit, type) and issubclass(kit, Toolkit)])
    _check_seats(cls, merge(cls.__name__, cls._tools, ToolNames(cls.__name__, kits).tools()))


def check_values(owner: Any) -> None:
    """Raise EnvironmentDefect if a class, or an instance of it, has an invalid value."""
    kind: Any = owner if isinstance(owner, type) else type(owner)
    if not callable(owner.user):
        raise EnvironmentDefect(
            f"{kind.__name__}.user is {owner.user!r:.100}; expected a method user(self, attempt), or an object that is "
            "called like it, such as ScriptedUser; give any other attribute another name"
        )
    for name in (*_RULES, *_BY_SEAT):
        # The value of a property depends on the options, and may be slow to compute.
        if isinstance(getattr(kind, name), property | cached_property):
            continue
        value, by_seat = getattr(owner, name), name in _BY_SEAT
        if by_seat and kind.seats and value and not isinstance(value, Mapping):
            raise EnvironmentDefect(f"{kind.__name__}.{name} is {value!r:.100}; expected it by seat: {{seat: ...}}")
        if name not in _RULES:
            continue
        holds, expected = _RULES[name]
        values = {name: value}
        if by_seat and isinstance(value, Mapping):
            values = {f"{name}[{seat!r}]": seat_value for seat, seat_value in value.items()}
        for label, declared in values.items():
            if not holds(declared):
                raise EnvironmentDefect(f"{kind.__name__}.{label} is {declared!r:.100}; expected {expected}")


def check_split_of(split: str, tasks: Any) -> None:
    """Raise UsageError for a split that does not exist, and for a `tasks` that is not the path of a file of tasks."""
    if tasks is not None and not isinstance(tasks, str):  # Gymnasium's spec is JSON.
        raise UsageError(f"tasks is a {type(tasks).__name__}; expected the path of a file of tasks, as str(path)")
    if split == WHOLE and tasks is None:
        raise UsageError(f"split is {WHOLE!r}, which is the whole of a file; name the file with tasks=FILE")
    if split != WHOLE:
        check_split(split)


def _check_seats(cls: Any, tools: Mapping[str, Any]) -> None:
    """Check that a game has at least two different seats and names no others, and that no other class names a seat."""
    if cls.seats and (len(cls.seats) < 2 or len(set(cls.seats)) < len(cls.seats)):
        raise EnvironmentDefect(f"{cls.__name__}.seats is {cls.seats!r}; expected at least two different names")
    for name in _BY_SEAT:
        value = getattr(cls, name)
        if isinstance(value, Mapping) and (unknown := [seat for seat in value if seat not in cls.seats]):
            seats = f"its seats are {cls.seats}" if cls.seats else "it has no `seats`"
            raise EnvironmentDefect(f"{cls.__name__}.{name} speaks of a seat {unknown[0]!r}; {seats}")
    # The tools of a toolkit made by a function are not known yet.
    has_factories = any(not isinstance(kit, type) for kit in cls.toolkits)
    for seat, names in cls.seat_tools.items():
        if not has_factories and (unknown := [name for name in names if name not in tools]):
            raise EnvironmentDefect(
                f"{cls.__name__}.seat_tools[{seat!r}] names {unknown[0]!r}; its tools are {', '.join(tools)}"
            )
