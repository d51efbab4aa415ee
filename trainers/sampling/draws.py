"""Which task the group of a number is of: a pure function, so that a run that is gone on with draws the same.

Of a mixture (`palaestra.mixture`) it is also which environment it is of: each has its exact share of every block of
groups, in an order that is drawn, and its own tasks are drawn as they would be if it were alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from palaestra.mixture import Mixture, read_mixture
from palaestra.protocols import Arena
from palaestra.trainers.sampling.sampler import Draw

TaskCount = int | Mapping[str, int]
"""How many tasks an environment has; of a mixture each one's, by name."""
_LARGEST_EPOCH = 10_000_000
"""Larger sets are drawn from by batches: no run comes to their end."""


def evenly(env: str, task_count: TaskCount, block: int, seed: int, epochs: bool = False) -> Draw:
    """Tasks drawn evenly, in blocks of `block` groups; with `epochs` of as many groups as there are tasks."""
    draws = {
        name: Even(name, count, count if epochs and count <= _LARGEST_EPOCH else block, seed)
        for name, count in counts_of(env, task_count).items()
    }
    deal = Deal(env, seed)

    def draw(group: int) -> tuple[str, int]:
        name, place = deal(group)
        return draws[name](place)

    return draw


def counts_in(arena: Arena, total: int) -> tuple[dict[str, int], Mapping[str, int]]:
    """How many of so many are of each environment of an arena, and how many tasks it has; an only one has no name."""
    tasks: Mapping[str, int] = getattr(arena, "task_counts", None) or {"": arena.task_count}
    mixture: Mixture | None = getattr(arena, "mixture", None)
    return {"": total} if mixture is None else mixture.counts(total), tasks


def counts_of(env: str, task_count: TaskCount) -> Mapping[str, int]:
    """How many tasks each environment has, by name."""
    return {env: task_count} if isinstance(task_count, int) else task_count


class Deal:
    """Which environment the group of a number is of, and how many groups of that environment come before it."""

    def __init__(self, env: str, seed: int) -> None:
        """`env` is an id, whose every group is its own, or a mixture."""
        self._mixture, self._seed = read_mixture(env) or Mixture({env: Fraction(1)}), seed
        self._dealt: tuple[int, list[tuple[str, int]]] = -1, []

    def __call__(self, group: int) -> tuple[str, int]:
        """Of that group."""
        block = self._mixture.block
        number, place = divmod(group, block)
        if self._dealt[0] != number:
            begin, end = (self._mixture.counts(at * block) for at in (number, number + 1))
            names = [name for name in begin for _ in range(begin[name], end[name])]
            order = np.random.default_rng([self._seed, number, 5]).permutation(len(names))
            own: list[tuple[str, int]] = []
            for at in order:
                name = names[at]
                own.append((name, begin[name]))
                begin[name] += 1
            self._dealt = number, own
        return self._dealt[1][place]


@dataclass(slots=True)
class Even:
    """Tasks drawn evenly in blocks of `block` groups; within a block no task comes twice, if there are enough.

    A block as large as the task set is an epoch.
    """

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
