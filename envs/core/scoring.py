"""Reward parts and limits: what an environment declares, and the check of what its `reward` returned.

Left out: terms that need tokens or training state (length penalties, tool bonuses); those are the trainer's.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from palaestra.errors import EnvironmentDefect

_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One named term of a reward: the total is the sum of weight times value."""

    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0


def is_number(value: Any) -> bool:
    """A finite number; no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_declared(owner: str, parts: Any) -> None:
    """Refuse declarations that no reward could satisfy, when the class is made."""
    if not isinstance(parts, Mapping):
        raise EnvironmentDefect(
            f"{owner}.parts is {parts!r:.100}; expected a RewardPart(weight, low, high) for each name: "
            "parts = {'success': RewardPart()}"
        )
    if "success" not in parts:
        raise EnvironmentDefect(f"{owner}.parts has no 'success'; declare it with 'success': RewardPart()")
    for name, part in parts.items():
        if not isinstance(part, RewardPart):
            raise EnvironmentDefect(f"{owner}.parts[{name!r}] is {part!r}; expected a RewardPart(weight, low, high)")
        if not all(map(is_number, (part.weight, part.low, part.high))) or part.low > part.high:
            raise EnvironmentDefect(f"{owner}.parts[{name!r}] is {part}; expected finite numbers and low <= high")
    success = parts["success"]
    if success.low < 0 or success.high > 1:
        raise EnvironmentDefect(f"{owner}.parts['success'] is {success}; it lies in [0, 1], scale it with `weight`")


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)


_LIMITS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_turns": (_is_count, "at least 1, a whole number: an answer takes a turn"),
    "max_turn_calls": (_is_count, "at least 1, a whole number"),
    "max_result_chars": (_is_count, "at least 1, a whole number"),
    "format": (lambda value: isinstance(value, str), "the name of a format"),
    "system": (lambda value: isinstance(value, str), 'a text; "" for none'),
    "shared": (_are_names, "a tuple of names: ('client',)"),
    "chance": (lambda value: is_number(value) and 0 <= value <= 1, "what guessing succeeds in, from 0 to 1"),
    "ceiling": (lambda value: value is None or is_number(value), "a finite number, or None"),
    **dict.fromkeys(
        ("reward_timeout", "start_timeout", "close_timeout"),
        (lambda value: is_number(value) and value > 0, "a number of seconds above 0"),
    ),
}
"""What holds of a limit, and how that is said."""
GAME_LIMITS = ("max_turns", "max_turn_calls", "max_result_chars", "format")
"""Those that mean the same in a game, where the others are given seat by seat."""


_BY_SEAT: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "system": _LIMITS["system"],
    "seat_tools": (_are_names, "a tuple of tools' names"),
    "chance": _LIMITS["chance"],
    "ceiling": (is_number, "a finite number"),
}


def check_limits(owner: Any, names: Sequence[str] = tuple(_LIMITS)) -> None:
    """Refuse a class, or one of its instances, whose limits make no sense."""
    kind = owner if isinstance(owner, type) else type(owner)
    for name in names:
        value, (holds, wanted) = getattr(owner, name), _LIMITS[name]
        if isinstance(value, property | cached_property):  # It depends on the options: an instance has a value.
            continue
        if not holds(value):
            raise EnvironmentDefect(f"{kind.__name__}.{name} is {value!r:.100}; expected {wanted}")


def check_by_seat(game: type) -> None:
    """Refuse a game in which what is said seat by seat makes no sense."""
    for name, (holds, wanted) in _BY_SEAT.items():
        given = getattr(game, name)
        if not isinstance(given, Mapping):
            raise EnvironmentDefect(
                f"{game.__name__}.{name} is {given!r:.100}; expected {wanted} for each seat: {{seat: ...}}"
            )
        for seat, value in given.items():
            if not holds(value):
                raise EnvironmentDefect(f"{game.__name__}.{name}[{seat!r}] is {value!r:.100}; expected {wanted}")


def score(owner: str, declared: Mapping[str, RewardPart], returned: Any) -> tuple[float, dict[str, float]]:
    """The total and every declared part, from what `reward` returned."""
    given: Mapping[str, Any] = {"success": returned}
    if not isinstance(returned, float) and isinstance(returned, Mapping):
        given = returned
        if not given.keys() <= declared.keys():
            unknown = min(str(name) for name in given if name not in declared)
            raise EnvironmentDefect(
                f"{owner}.reward returned the part {unknown!r}, which is not declared; add it to {owner}.parts "
                f"(declared: {', '.join(declared)})"
            )
        if "success" not in given:
            raise EnvironmentDefect(f"{owner}.reward returned {dict(given)!r} without 'success'; add that part")
    total, parts = 0.0, {}
    for name, part in declared.items():
        value = given.get(name, 0.0)
        if type(value) is not float or not part.low <= value <= part.high:
            value = _number(owner, name, part, value)
        parts[name] = value
        total += part.weight * value
    return total, parts


def _number(owner: str, name: str, part: RewardPart, value: Any) -> float:
    """One part's value as a float, finite and within its range."""
    try:
        if isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise EnvironmentDefect(
            f"{owner}.reward gave {name} = {value!r} ({type(value).__name__}); expected a number"
        ) from None
    if part.low <= number <= part.high:
        return number
    if not math.isfinite(number):
        raise EnvironmentDefect(f"{owner}.reward gave {name} = {number}; expected a finite number")
    if not part.low - _SLACK <= number <= part.high + _SLACK:
        raise EnvironmentDefect(
            f"{owner}.reward gave {name} = {number}; its declared range is [{part.low}, {part.high}]: "
            f"change reward, or declare RewardPart(low=..., high=...) for {name!r}"
        )
    return min(max(number, part.low), part.high)
