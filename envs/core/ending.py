"""How an episode comes out for each seat: whose doing its end was, what its rounds pay, what its state declares.

Left out: parts and ranges of a reward (`scoring`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.envs.core.state import Seat
from palaestra.episode import Ending
from palaestra.errors import EnvironmentDefect, UsageError
from palaestra.plain import from_plain, to_plain


def blame(seat: Seat, culprit: Seat, ending: Ending, fault: str) -> tuple[Ending, str]:
    """Ending and fault of a seat whose game `culprit` cut short. A seat with a fault is scored, never trained on."""
    if seat == culprit:
        return ending, ""
    return Ending.TURN_LIMIT, fault or f"{culprit} could not go on: {ending}"


def rewards_of_all(owner: str, seats: Sequence[Seat], returned: Any) -> Mapping[Seat, Any]:
    """What rounds returned, if it is the reward of every seat."""
    if not isinstance(returned, Mapping) or set(returned) != set(seats):
        raise EnvironmentDefect(f"{owner}.rounds returned {returned!r}; expected the reward of each of {tuple(seats)}")
    return returned


def merged_final(owner: str, takers: Sequence[tuple[Seat, Any]], found: Sequence[Any]) -> Mapping[str, Any]:
    """What environment and toolkits declare of their state, as one mapping of plain data that nobody else holds.

    A toolkit of which each seat has one declares each name by seat.
    """
    merged: dict[str, Any] = {}
    for (seat, taker), declared in zip(takers, found, strict=True):
        where = f"{type(taker).__name__}.final()"
        if not isinstance(declared, Mapping) or not all(isinstance(name, str) for name in declared):
            raise EnvironmentDefect(f"{owner}: {where} returned {declared!r:.100}; expected a dict by name")
        for name, value in declared.items():
            try:
                plain = from_plain(to_plain(value, f"{where}[{name!r}]"))
            except UsageError as error:
                raise EnvironmentDefect(f"{owner}: {error}") from error
            if seat is not None:
                merged.setdefault(name, {})[seat] = plain
            elif name in merged:
                raise EnvironmentDefect(f"{owner}: two toolkits declare {name!r} in final(); rename one")
            else:
                merged[name] = plain
    return merged
