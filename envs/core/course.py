"""The rounds of a game: a Course runs the author's generator `rounds`, sends it replies, and returns its questions.

A generator cannot be copied, so a copy of a game sends the recorded replies to a new generator; no tool runs twice.
Left out: the order of turns, tools and rewards (`machine`).
"""

import logging
from collections.abc import Coroutine, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from palaestra.envs.core.author import Replies, ToolEnv
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UsageError

log = logging.getLogger("palaestra.envs")
_PLAIN = (int, float, str, bool, type(None))


class Finished(Exception):
    """Raised when the rounds are over; its argument is the value that `rounds` returned."""


@dataclass(slots=True)
class Round:
    """One round of a game."""

    asks: Mapping[str, str]
    """Questions to seats, by seat."""
    attributes: Mapping[str, Any]
    """Numbers and texts that were set on `self` before the round: tools may have changed them."""
    replies: Mapping[str, str | None] = field(default_factory=dict)
    """Replies by seat, once the round is over; None for a seat without a reply."""
    world: Mapping[str, Any] | None = None
    """State that toolkits declared after the round; None if no toolkit declares any."""


class Course:
    """The rounds of one game: the author's generator, with its questions and the replies to them."""

    __slots__ = ("generator", "play", "replies", "rng", "rounds", "seeds", "task")

    def __init__(self, play: ToolEnv, task: Task, seed: int, index: int) -> None:
        self.play, self.task = play, task
        self.rng = np.random.default_rng([seed, index])
        self.generator: Any = _generator(play, task, self.rng)
        self.rounds: list[Round] = []
        self.seeds: dict[int, int] = {}
        """Seeds given to `rng` before a round, by the index of the round."""
        self.replies: dict[str, str | None] = {}
        """Replies to the present round, by seat."""

    @property
    def worlds(self) -> tuple[Mapping[str, Any], ...]:
        """States that toolkits declared after each round; empty if no toolkit declares any."""
        return tuple(past.world for past in self.rounds if past.world is not None)

    def ask(self, world: Mapping[str, Any] | None = None) -> Mapping[str, str]:
        """Send the replies and the `world` of a finished round to the generator, and return its next questions by seat.
        Raise Finished when there are none."""
        owner, replies = type(self.play).__name__, None
        if self.rounds:
            past = self.rounds[-1]
            # In the order of the questions, not of the replies.
            replies = Replies((seat, self.replies.get(seat)) for seat in past.asks)
            self.replies, replies.world = {}, world or {}
            past.replies, past.world = dict(replies), world
        attributes = {name: value for name, value in vars(self.play).items() if isinstance(value, _PLAIN)}
        try:
            asks: Any = self.generator.send(replies)  # None starts the generator.
        except StopIteration as end:
            raise Finished(end.value) from None
        if not isinstance(asks, Mapping) or not asks:
            raise EnvironmentDefect(f"{owner}.rounds yielded {asks!r}; expected {{seat: text}}")
        if unknown := [seat for seat in asks if seat not in self.play.seats]:
            seats = ", ".join(map(repr, self.play.seats))
            raise EnvironmentDefect(f"{owner}.rounds asks {unknown[0]!r}, and there is no such seat; seats are {seats}")
        for seat, text in asks.items():
            if not isinstance(text, str) or not text:
                raise EnvironmentDefect(f"{owner}.rounds asks {seat} {text!r}; expected some text")
        self.rounds.append(Round(dict(asks), attributes))
        return asks

    def close(self) -> None:
        """Close the generator of the rounds; an error of the author's code is only logged."""
        try:
            self.generator.close()
        except Exception as error:
            log.warning("%s.rounds did not end: %s: %s", type(self.play).__name__, type(error).__name__, error)

    def reseed(self, seed: int) -> None:
        """Seed `rng` in place, because the author's generator holds it."""
        bits = self.rng.bit_generator
        bits.state = type(bits)(seed).state
        self.seeds[len(self.rounds)] = seed

    def record(self) -> "Course":
        """Return a copy for a snapshot, without the generator of the rounds and the objects of the episode."""
        twin: Course = object.__new__(Course)
        twin.task, twin.seeds, twin.replies = self.task, dict(self.seeds), dict(self.replies)
        twin.rounds = [replace(past) for past in self.rounds]
        return twin

    def replayed(self, play: ToolEnv, seed: int, index: int) -> "Course":
        """Return a new course in the state of this one; raise UsageError if its repeated rounds ask other questions."""
        twin = Course(play, self.task, seed, index)
        world = None
        for number, past in enumerate(self.rounds):
            if number in self.seeds:
                twin.reseed(self.seeds[number])
            if number:
                vars(play).update(past.attributes)
            try:
                again = twin.ask(world)
            except Finished:
                again = {}
            if dict(again) != past.asks:
                raise UsageError(
                    f"{type(play).__name__} asked another question when its rounds were repeated: round "
                    f"{number + 1} asked {past.asks!r:.200} and then {dict(again)!r:.200}. Rounds may use the replies, "
                    "rng, `said.world`, numbers and texts on self; let final() of a Toolkit declare what else changes"
                )
            twin.replies, world = dict(past.replies), past.world
        if len(self.rounds) in self.seeds:
            twin.reseed(self.seeds[len(self.rounds)])
        twin.replies = dict(self.replies)
        return twin


def _generator(play: ToolEnv, task: Task, rng: np.random.Generator) -> Generator[Any, Any, Any]:
    rounds: object = play.rounds(task, rng)
    if isinstance(rounds, Generator):
        return rounds
    if isinstance(rounds, Coroutine):
        rounds.close()  # It is never awaited, and Python would warn of that too.
    raise EnvironmentDefect(
        f"{type(play).__name__}.rounds gave {type(rounds).__name__} and no generator; write it as a plain "
        "method (no async) that yields {seat: text} for each turn and returns every seat's reward at its end"
    )
