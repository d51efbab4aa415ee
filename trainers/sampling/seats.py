"""Seats of a game in training and measuring: every seat gets a start of the same game.

Where the environment has one seat, all of this changes nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from palaestra.episode import Start
from palaestra.errors import ConfigError
from palaestra.protocols import Arena


def seats_of(arena: Arena) -> tuple[str, ...]:
    """The seats of an arena of games; empty where there is one seat, which has no name."""
    return tuple(getattr(arena, "seats", ()))


def check_seats(arena: Arena, chosen: Sequence[str]) -> None:
    """Refuse to train a seat that does not exist."""
    seats = seats_of(arena)
    if unknown := [seat for seat in chosen if seat not in seats]:
        raise ConfigError(
            f"train_seats names {unknown[0]!r}; the environment has "
            + (f"the seats {', '.join(seats)}" if seats else "one seat, which has no name: leave train_seats empty")
        )


def seated(starts: Iterable[Start], seats: Sequence[str]) -> Iterator[Start]:
    """One start for each seat of each game, games one after the other; same task and seed, a group for each seat."""
    for start in starts:
        if not seats:
            yield start
        for place, seat in enumerate(seats):
            yield replace(start, seat=seat, group=start.group * len(seats) + place)
