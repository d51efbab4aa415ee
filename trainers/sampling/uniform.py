"""Tasks drawn evenly, and every group that is played is learned from."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from palaestra.episode import Start
from palaestra.trainers.batch import Batch, Sample, Scored
from palaestra.trainers.sampling.sampler import Draw
from palaestra.trainers.sampling.seats import seated


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every task is as likely as any other."""

    def __call__(
        self,
        env: str,
        task_count: int,
        *,
        num_prompts: int,
        num_generations: int,
        seed: int = 0,
        seats: Sequence[str] = (),
        learning: Sequence[str] = (),
    ) -> "InOrder":
        """A sampler; in a game each seat has groups of its own, and those of the `learning` ones (all where none is
        named) are learned from.
        """
        draw = Even(env, task_count, num_prompts, seed)
        return InOrder(draw, num_prompts, num_generations, tuple(seats), frozenset(learning or seats))


class InOrder:
    """Groups in the order of their numbers; a batch is complete when all of its episodes have ended."""

    def __init__(
        self, draw: Draw, num_prompts: int, num_generations: int, seats: tuple[str, ...], learning: frozenset[str]
    ) -> None:
        self.draw, self.seats, self.learning = draw, seats, learning
        self.num_prompts, self.num_generations = num_prompts, num_generations
        self._whole = num_prompts * num_generations * max(1, len(seats))
        """Episodes of a batch."""
        self.load({"first": 0})

    def next(self, ahead: int = 0) -> Start | None:
        """The next member of the group that is begun, or the first of another."""
        if not self._queue and self._begun < self._first + (ahead + 1) * self.num_prompts:
            self._queue.extend(self._starts(self._begun))
            self._begun += 1
        return self._queue.popleft() if self._queue else None

    def heard(self, scored: Scored) -> None:
        """Keep it for its batch."""
        self._heard.setdefault(self._number(scored) // self.num_prompts, []).append(scored)

    def wanted(self, start: Start) -> bool:
        """All are."""
        return True

    def batch(self) -> Batch | None:
        """What has been heard of the batch at hand, once that is all; what has no terms is played, but no sample."""
        number = self._first // self.num_prompts
        if len(self._heard.get(number, ())) < self._whole:
            return None
        played = tuple(self._heard.pop(number))
        taught = [place for place, scored in enumerate(played) if self._teaches(scored)]
        groups = sorted({played[place].episode.start.group for place in taught})
        samples = tuple(Sample(place, groups.index(played[place].episode.start.group)) for place in taught)
        self._first += self.num_prompts
        return Batch(number, played, samples, self.state())

    def state(self) -> Mapping[str, Any]:
        """Every draw follows from a group's number, so one number is all."""
        return {"first": self._first}

    def load(self, state: Mapping[str, Any]) -> None:
        """Stand before the group of that number."""
        self._first = self._begun = int(state["first"])
        self._queue: deque[Start] = deque()
        self._heard: dict[int, list[Scored]] = {}

    def _starts(self, group: int) -> Iterator[Start]:
        """The members of a group, and of a game each seat's; a seat's episodes are compared with one another."""
        env, task = self.draw(group)
        seeds = range(group * self.num_generations, (group + 1) * self.num_generations)
        return seated((Start(task, seed, group, env=env) for seed in seeds), self.seats)

    def _number(self, scored: Scored) -> int:
        return scored.episode.start.group // max(1, len(self.seats))

    def _teaches(self, scored: Scored) -> bool:
        """An episode that another seat cut short has a fault, and is no lesson."""
        episode = scored.episode
        return (
            scored.terms is not None and not episode.fault and (not self.seats or episode.start.seat in self.learning)
        )


@dataclass(slots=True)
class Even:
    """Tasks drawn evenly in blocks of `block` groups; within a block no task comes twice, if there are enough."""

    env: str
    task_count: int
    block: int
    seed: int
    _drawn: tuple[int, list[int]] = field(default=(-1, []), init=False)

    def __call__(self, group: int) -> tuple[str, int]:
        """The task of that group."""
        number, place = divmod(group, self.block)
        if self._drawn[0] != number:
            rng = np.random.default_rng([self.seed, number])
            self._drawn = number, _distinct(rng, self.task_count, self.block)
        return self.env, self._drawn[1][place]


def _distinct(rng: np.random.Generator, count: int, wanted: int) -> list[int]:
    """Different numbers below `count`; with repeats only if there are too few. `count` may be astronomically large."""
    if wanted >= count:
        again = rng.integers(count, size=wanted - count)
        return [int(task) for task in (*rng.permutation(count), *again)]
    drawn: dict[int, None] = {}
    while len(drawn) < wanted:
        drawn.setdefault(int(rng.integers(count)))
    return list(drawn)
