"""What the settings of a class may be: limits, texts and names that its author gives as attributes.

Left out: reward parts (`scoring`), and attributes that are no settings (`envs.checks.settings`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

from palaestra.envs.core.scoring import is_number
from palaestra.errors import EnvironmentDefect


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
