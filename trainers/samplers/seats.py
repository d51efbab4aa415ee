"""Seats of a game in training and evaluation: every seat gets a start of the same game.

If the environment has one seat, these functions change nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from palaestra.episode import Start
from palaestra.errors import ConfigError
from palaestra.protocols import Arena


def seats_of(arena: Arena) -> tuple[str, ...]:
    """Return the names of the seats of an arena of games; an empty tuple if the environment has one seat, unnamed."""
    return tuple(getattr(arena, "seats", ()))


def check_seats(arena: Arena, chosen: Sequence[str]) -> None:
    """Raise `ConfigError` if a seat to train does not exist."""
    seats = seats_of(arena)
    if unknown := [seat for seat in chosen if seat not in seats]:
        raise ConfigError(
            f"train_seats names {unknown[0]!r}; the environment has "
            + (f"the seats {', '.join(seats)}" if seats else "one seat, which has no name: leave train_seats empty")
        )


def seated(starts: Iterable[Start], seats: Sequence[str]) -> Iterator[Start]:
    """Yield one start per seat of each game, with the game's task and seed and its own group. Without seats, yield the
    starts unchanged.
    """
    for start in starts:
        if not seats:
            yield start
        for place, seat in enumerate(seats):
            yield replace(start, seat=seat, group=start.group * len(seats) + place)
