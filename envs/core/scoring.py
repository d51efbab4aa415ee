"""Reward parts: their declaration by an environment, and the check of the value that its `reward` returned.

Left out: terms that need tokens or training state (length penalties, tool bonuses); those are the trainer's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
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
    """Return whether a value is a finite number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_declared(owner: str, parts: Mapping[str, RewardPart]) -> None:
    """Raise EnvironmentDefect for declared parts that no reward can satisfy, when the class is defined."""
    if "success" not in parts:
        raise EnvironmentDefect(f"{owner}.parts has no 'success'; declare it with 'success': RewardPart()")
    for name, part in parts.items():
        numbers = (part.weight, part.low, part.high) if isinstance(part, RewardPart) else (None,)
        if not all(map(is_number, numbers)) or part.low > part.high:
            raise EnvironmentDefect(
                f"{owner}.parts[{name!r}] is {part!r}; expected a RewardPart(weight, low, high) of finite numbers, "
                "low <= high"
            )
    success = parts["success"]
    if success.low < 0 or success.high > 1:
        raise EnvironmentDefect(f"{owner}.parts['success'] is {success}; it lies in [0, 1], scale it with `weight`")


def score(owner: str, declared: Mapping[str, RewardPart], returned: Any) -> tuple[float, dict[str, float]]:
    """Return the weighted total and the value of every declared part, from the value that `reward` returned."""
    if type(returned) is float and len(declared) == 1:  # Most rewards are this.
        part = declared["success"]
        if part.low <= returned <= part.high:
            return part.weight * returned, {"success": returned}
    values: Mapping[str, Any] = {"success": returned}
    if not isinstance(returned, float) and isinstance(returned, Mapping):
        values = returned
        if not values.keys() <= declared.keys():
            unknown = min(str(name) for name in values if name not in declared)
            raise EnvironmentDefect(
                f"{owner}.reward returned the part {unknown!r}, which is not declared; add it to {owner}.parts "
                f"(declared: {', '.join(declared)})"
            )
        if "success" not in values:
            raise EnvironmentDefect(f"{owner}.reward returned {dict(values)!r} without 'success'; add that part")
    total, parts = 0.0, {}
    for name, part in declared.items():
        value = values.get(name, 0.0)
        if type(value) is not float or not part.low <= value <= part.high:
            value = _number(owner, name, part, value)
        parts[name] = value
        total += part.weight * value
    return total, parts


def _number(owner: str, name: str, part: RewardPart, value: Any) -> float:
    """Return one part's value as a float, finite and within its range."""
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
        fix = f"change reward, or declare RewardPart(low=..., high=...) for {name!r}"
        if name == "success":
            fix = "return it as a share of the best, and scale it with RewardPart(weight=...)"
        raise EnvironmentDefect(
            f"{owner}.reward gave {name} = {number}; its declared range is [{part.low}, {part.high}]: {fix}"
        )
    return min(max(number, part.low), part.high)
