"""Snapshots of a game between two turns, and branches that go on from one.

A generator cannot be copied, so a game is not kept but told again: a snapshot is what was said so far, and restoring it
plays these turns anew, their tools too. That leads back exactly where a game is what it has to be for replays as well:
its course depends on task, seed and turns alone, and `rounds` sets up whatever its tools change. Every message is held
against what was heard the first time; a game that tells another story is refused. Left out: the cost of slow tools,
which are waited for again.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from palaestra.envs.games.match import Events, Seat
from palaestra.episode import Message, Start
from palaestra.errors import UsageError

if TYPE_CHECKING:
    from palaestra.envs.games.game import Game

Kind = TypeVar("Kind", bound="Game")
_PLAYED = frozenset({"_rounds", "_records", "_asked", "_replies", "_said", "_noise", "_random", "problem"})
"""Attributes of the game that is played, not of which game it is."""
_SHARED = frozenset({"_set", "outcomes"})


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GameSnapshot:
    """A game as it stood. It never changes, and may be restored any number of times."""

    game_class: type
    said: tuple[tuple[str, str], ...]
    """Every turn so far: whose, and its text."""
    _starts: Mapping[Seat, Start]
    _noise: tuple[tuple[int, int], ...]
    """After how many turns the game's generator was seeded anew, and with what."""
    _heard: Mapping[Seat, tuple[Message, ...]]

    def __repr__(self) -> str:
        return f"<GameSnapshot of {self.game_class.__name__} after {len(self.said)} turns>"


def take(game: "Game") -> GameSnapshot:
    """A snapshot of the running game."""
    if not game.is_open:
        raise UsageError("snapshot of a game that is not running; call open first")
    starts = {seat: record.start for seat, record in game.records.items()}
    heard = {seat: tuple(record.messages) for seat, record in game.records.items()}
    return GameSnapshot(type(game), tuple(game._said), starts, tuple(game._noise), heard)


def put(game: "Game", snapshot: GameSnapshot) -> Events:
    """Let the game stand where the snapshot was taken; a game that runs is dropped."""
    if not isinstance(snapshot, GameSnapshot) or snapshot.game_class is not type(game):
        raise UsageError(f"restore: found {snapshot!r}; expected a GameSnapshot of {type(game).__name__}")
    asked = dict(game.open(snapshot._starts))
    game._noise = list(snapshot._noise)
    seeds: dict[int, int] = dict(snapshot._noise)
    for number, (seat, text) in enumerate(snapshot.said):
        if number in seeds:
            _seed(game, seeds[number])
        if asked.pop(seat, None) is None or not game.is_open:
            raise UsageError(_other_story(game, f"it does not ask {seat} for turn {number + 1}"))
        asked |= game.act({seat: text})
    if len(snapshot.said) in seeds:
        _seed(game, seeds[len(snapshot.said)])
    for name, record in game.records.items():
        if tuple(record.messages) != snapshot._heard[name]:
            raise UsageError(_other_story(game, f"{name} hears other words"))
    return asked


def fork(game: Kind, count: int, own_noise: bool) -> list[Kind]:
    """Games of their own that stand where this one stands."""
    if count < 1:
        raise UsageError(f"fork({count}); expected at least 1")
    snapshot = take(game)
    children: list[Kind] = []
    for index in range(count):
        child: Kind = object.__new__(type(game))
        child._clear()
        for name, value in vars(game).items():
            if name not in _PLAYED:
                setattr(child, name, value if name in _SHARED else copy.deepcopy(value))
        put(child, snapshot)
        if own_noise:
            drawn = copy.deepcopy(game._random).integers(2**32, size=2)
            (seed,) = np.random.SeedSequence([*map(int, drawn), len(snapshot.said), index]).generate_state(1) >> 1
            child._noise = [(at, one) for at, one in child._noise if at != len(snapshot.said)]
            child._noise.append((len(snapshot.said), int(seed)))
            _seed(child, int(seed))
        children.append(child)
    return children


def _seed(game: "Game", seed: int) -> None:
    """Seed the generator in place: the rounds hold it."""
    bits = game._random.bit_generator
    bits.state = type(bits)(seed).state


def _other_story(game: "Game", what: str) -> str:
    return (
        f"{type(game).__name__} did not come out the same when its turns were taken again: {what}. Its tools or rounds "
        "depend on something beside task, seed and turns; take randomness from rng only, and let rounds set up what "
        "tools change"
    )
