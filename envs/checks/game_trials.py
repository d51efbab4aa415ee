"""Games that the checks of a game are made of: all seats by rule, or one seat by a cheat and the others by rule.

Left out: what they must come to (`game_check`).
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from palaestra import formats
from palaestra.envs.checks.cheats import Cheat
from palaestra.envs.checks.trials import has_demonstrator, require_untouched
from palaestra.envs.games.game import Game
from palaestra.envs.games.match import Events, Seat
from palaestra.envs.games.openers import one_game
from palaestra.envs.games.partners import Partnered, Rule, seat_rng
from palaestra.episode import Ending, Event, Message, Start
from palaestra.errors import Broken, EnvironmentDefect
from palaestra.registry import demonstrator

MAX_STEPS = 2_000
"""Turns of all seats in one game; one that goes on longer is taken for endless."""
GAMES = 12
"""Of each measurement by rule."""


@contextmanager
def opened(game_id: str, **options: Any) -> Iterator[Game]:
    """A game, with its tools' failures kept out of the log."""
    log = logging.getLogger("palaestra.envs")
    level = log.level
    log.setLevel(logging.ERROR)
    _, game = one_game(game_id, options)
    try:
        yield game
    finally:
        log.setLevel(level)
        game.close()


def rule_of(game_id: str) -> Rule:
    """The demonstrator, or one who repeats what it is told."""
    return demonstrator(game_id) if has_demonstrator(game_id) else _repeat


def _repeat(messages: Sequence[Message], rng: np.random.Generator) -> str:
    return str(messages[-1]["content"])


def played(
    game_id: str, task: int, seed: int, rule: Rule | None = None, after: bool = False
) -> dict[str, dict[str, Any]]:
    """What every seat met in one game by rule, the demonstrator's where none is given; or `after` another game."""
    rule = rule or rule_of(game_id)
    with opened(game_id) as game:
        if after:
            by_rule(game, min(task + 1, game.task_count - 1), seed + 1, rule)
        task = min(task, game.task_count - 1)
        kept = deepcopy(game.tasks[task])
        events = by_rule(game, task, seed, rule)
        if game.problem is not None:
            require_untouched(kept, game.problem)
    return {
        str(seat): {
            "attempt": event.attempt, "ending": event.ending, "reward": event.reward, "parts": dict(event.parts),
        }
        for seat, event in events.items()
    }  # fmt: skip


def games(game_id: str, rule: Rule) -> Iterator[Events]:
    """How several games by rule end."""
    with opened(game_id) as game:
        for number in range(GAMES):
            yield by_rule(game, number % game.task_count, number, rule)


def by_rule(game: Game, task: int, seed: int, rule: Rule) -> Events:
    """One game in which a rule plays all seats: how it ends."""
    starts: dict[Seat, Start] = {seat: Start(task, seed, seat=seat) for seat in game.seats}
    asked: dict[Seat, Event] = dict(game.open(starts))
    for _ in range(MAX_STEPS):
        if any(event.ending is not None for event in asked.values()):
            return asked
        seat = next(seat for seat in game.seats if seat in asked)
        event, heard = asked.pop(seat), list(game.records[seat].messages)
        said = rule(heard, seat_rng(seat, event.start, len(heard)))
        events = game.act({seat: formats.translate(said, game.format, event.tools)})
        asked = events if any(one.ending is not None for one in events.values()) else asked | events
    raise EnvironmentDefect(f"task {task}, seed {seed}: the game goes on after {MAX_STEPS} turns; it has to end")


class SeatPlayer:
    """One seat of a game, whose others are played by rule; what a cheat sees of it."""

    def __init__(self, game: Game, seat: str, rule: Rule) -> None:
        self._game, self._seat = game, seat
        self._match = Partnered(game, seat, rule, game.format)
        self.messages: list[Message] = []
        self.format, self.max_turns, self.max_turn_calls = game.format, game.max_turns, game.max_turn_calls

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """What the seat is told of its tools."""
        return self._game.schemas(self._seat)

    def call(self, tool_name: str, /, **arguments: Any) -> str:
        """The text of a call."""
        return formats.get(self.format).render([formats.ParsedCall(tool_name, arguments)])

    def begin(self, number: int) -> Event | None:
        """A game of that number, up to the seat's first turn."""
        self.messages = []
        return self._heard(self._match.open({None: Start(number % self._game.task_count, number)}))

    def say(self, text: str) -> Event | None:
        """A turn; what came of it, None where the seat is never asked again before the end."""
        self.messages.append({"role": "assistant", "content": text})
        return self._heard(self._match.act({None: text}))

    def leave(self) -> Event:
        """The seat cannot go on."""
        return self._match.stop(Ending.LENGTH_LIMIT)[None]

    def _heard(self, events: Events) -> Event | None:
        event = events.get(None)
        if event is not None:
            self.messages += event.messages
        return event


def seat_of(game_id: str, seat: str) -> SeatPlayer:
    """A seat whose others are played by the demonstrator."""
    _, game = one_game(game_id, {})
    return SeatPlayer(game, seat, rule_of(game_id))


def cheated(player: SeatPlayer, cheat: Cheat, most: int, fewest: int, seconds: float) -> list[tuple[float, float]]:
    """Success and reward of games of a cheat: fewer where the tools that it calls are slow."""
    found: list[tuple[float, float]] = []
    until = time.monotonic() + seconds
    while len(found) < most and (len(found) < fewest or time.monotonic() < until):
        event = player.begin(len(found))
        for _ in range(MAX_STEPS):
            if event is None or event.ending is not None:
                break
            said = cheat(player, player.messages)
            event = player.leave() if said is None else player.say(said)
        if event is None or event.ending is None:
            raise EnvironmentDefect(f"the game goes on after {MAX_STEPS} turns of one seat; it has to end")
        if event.ending is Ending.BROKEN:
            raise Broken(event.fault)
        found.append((event.parts["success"], event.reward or 0.0))
    return found
