"""Which task the group of a number is of: a pure function, so that a run that is gone on with draws the same."""

from dataclasses import dataclass, field

import numpy as np


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
