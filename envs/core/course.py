"""The rounds of a game, run by the author's generator, and the messages between them and the seats.

A generator cannot be copied, so the recorded replies are sent to a new one; no tool runs twice. Left out: turn order,
tools and rewards (`machine`).
"""

import logging
from collections.abc import Coroutine, Generator, Mapping
from typing import Any

import numpy as np

from palaestra.envs.core.author import Replies, ToolEnv
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UsageError

log = logging.getLogger("palaestra.envs")
_PLAIN = (int, float, str, bool, type(None))


class Finished(Exception):
    """Raised when the rounds are over; its argument is what they returned."""


class Course:
    """The rounds of one game."""

    __slots__ = ("asks", "noise", "owner", "play", "replies", "rng", "rounds", "said", "seen", "task", "worlds")

    def __init__(self, play: ToolEnv, task: Task, seed: int, index: int) -> None:
        self.task, self.owner = task, type(play).__name__
        self.play = play
        self.rng = np.random.default_rng([seed, index])
        self.rounds = _generator(play, task, self.rng)
        self.asks: list[Mapping[str, str]] = []
        """Questions of each round, by seat."""
        self.said: list[Mapping[str, str | None]] = []
        """Replies to each round, by seat; None for a seat without a reply."""
        self.worlds: list[Mapping[str, Any]] = []
        """States that toolkits declared after each round; empty if no toolkit declares any."""
        self.seen: list[Mapping[str, Any]] = []
        """Numbers and texts set on `self` before each round: tools may have changed them."""
        self.noise: dict[int, int] = {}
        """Seeds given to the generator before a round, by the number of the round."""
        self.replies: dict[str, str | None] = {}
        """Replies to the present round, by seat."""

    def ask(self, world: Mapping[str, Any] | None = None) -> Mapping[str, str]:
        """Send the replies of a finished round, and return the next questions. Raises Finished at the end."""
        replies = None
        if self.asks:
            # In the order of the questions, not of the replies.
            replies = Replies((seat, self.replies.get(seat)) for seat in self.asks[-1])
            self.replies = {}
            replies.world = world or {}
            self.said.append(dict(replies))
            if world is not None:
                self.worlds.append(world)
        self.seen.append({name: value for name, value in vars(self.play).items() if isinstance(value, _PLAIN)})
        try:
            asks: Any = self.rounds.send(replies)  # None starts the generator.
        except StopIteration as end:
            raise Finished(end.value) from None
        if not isinstance(asks, Mapping) or not asks or any(seat not in self.play.seats for seat in asks):
            raise EnvironmentDefect(f"{self.owner}.rounds yielded {asks!r}; expected {{seat: text}}")
        for seat, text in asks.items():
            if not isinstance(text, str) or not text:
                raise EnvironmentDefect(f"{self.owner}.rounds asks {seat} {text!r}; expected some text")
        self.asks.append(dict(asks))
        return asks

    def close(self) -> None:
        """Close the generator of the rounds; an error of the author's code is only logged."""
        try:
            self.rounds.close()
        except Exception as error:
            log.warning("%s.rounds did not end: %s: %s", self.owner, type(error).__name__, error)

    def reseed(self, seed: int) -> None:
        """Seed the generator in place, because the rounds hold it."""
        bits = self.rng.bit_generator
        bits.state = type(bits)(seed).state
        self.noise[len(self.asks)] = seed

    def kept(self) -> "Course":
        """Return a copy for a snapshot, without the generator of the rounds."""
        twin: Course = object.__new__(Course)
        twin.task, twin.owner = self.task, self.owner
        twin.asks, twin.said, twin.worlds = self.asks.copy(), self.said.copy(), self.worlds.copy()
        twin.noise, twin.replies, twin.seen = dict(self.noise), dict(self.replies), self.seen.copy()
        return twin

    def told_again(self, play: ToolEnv, seed: int, index: int) -> "Course":
        """Return a new course in the present state of this one; raise UsageError if its rounds ask something else."""
        twin = Course(play, self.task, seed, index)
        twin.noise = dict(self.noise)
        for number, asks in enumerate(self.asks):
            if number in self.noise:
                twin.reseed(self.noise[number])
            if number:
                twin.replies = dict(self.said[number - 1])
                vars(play).update(self.seen[number])
            try:
                again = twin.ask(self.worlds[number - 1] if number and self.worlds else None)
            except Finished:
                again = {}
            if dict(again) != asks:
                raise UsageError(
                    f"{type(play).__name__} did not come out the same when its rounds were told again: round "
                    f"{number + 1} asked {dict(asks)!r:.200} and then {dict(again)!r:.200}. Rounds know what was said, "
                    "rng, `said.world`, numbers and texts on self: let final() of a Toolkit declare what else changes"
                )
        if len(self.asks) in self.noise:
            twin.reseed(self.noise[len(self.asks)])
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
