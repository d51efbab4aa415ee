"""Sample the task of a group, as a pure function of the group's number, so that a resumed run samples the same tasks.

For a mixture (`palaestra.mixture`) the function also chooses the environment. In every block of groups each environment
has its exact share, in a random order. Its tasks are sampled as if it were the only environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from palaestra.errors import UsageError
from palaestra.mixture import Mixture, read_mixture
from palaestra.protocols import Arena
from palaestra.trainers.samplers.sampler import TaskDraw

TaskCount = int | Mapping[str, int]
"""Number of tasks of an environment, or of each environment of a mixture, by name."""
_LARGEST_EPOCH = 10_000_000
"""Largest number of tasks for an epoch. Larger sets are sampled batch by batch, because no run uses all their tasks."""


def evenly(env: str, task_count: TaskCount, block: int, seed: int, epochs: bool = False) -> TaskDraw:
    """Return a function that samples tasks uniformly, in blocks of `block` groups.

    With `epochs` a block holds every task of the environment once.
    """
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
    """Return each environment's part of `total`, and each environment's number of tasks, by name.

    An arena of one environment has the name "".
    """
    tasks: Mapping[str, int] = getattr(arena, "task_counts", None) or {"": arena.task_count}
    mixture: Mixture | None = getattr(arena, "mixture", None)
    return {"": total} if mixture is None else mixture.counts(total), tasks


def counts_of(env: str, task_count: TaskCount) -> Mapping[str, int]:
    """Return the number of tasks of each environment, by name."""
    return {env: task_count} if isinstance(task_count, int) else task_count


class Deal:
    """Function from a group's number to its environment and the number of earlier groups of that environment."""

    def __init__(self, env: str, seed: int) -> None:
        """`env` is a mixture, or the id of one environment, which then has every group."""
        self._mixture, self._seed = read_mixture(env) or Mixture({env: Fraction(1)}), seed
        self._dealt: tuple[int, list[tuple[str, int]]] = -1, []

    def __call__(self, group: int) -> tuple[str, int]:
        """Return the environment of a group, and how many earlier groups have the same environment."""
        block = self._mixture.block
        number, place = divmod(group, block)
        if self._dealt[0] != number:
            begin, end = (self._mixture.counts(at * block) for at in (number, number + 1))
            names = [name for name in begin for _ in range(begin[name], end[name])]
            order = np.random.default_rng([self._seed, number, 5]).permutation(len(names))
            assignments: list[tuple[str, int]] = []
            for at in order:
                name = names[at]
                assignments.append((name, begin[name]))
                begin[name] += 1
            self._dealt = number, assignments
        return self._dealt[1][place]


@dataclass(slots=True)
class Even:
    """Samples tasks uniformly in blocks of `block` groups. No task repeats within a block if there are enough tasks.

    A block as large as the task set is an epoch.
    """

    env: str
    task_count: int
    block: int
    seed: int
    _drawn: tuple[int, list[int]] = field(default=(-1, []), init=False)

    def __call__(self, group: int) -> tuple[str, int]:
        """Return the environment and the task of a group."""
        number, place = divmod(group, self.block)
        if self._drawn[0] != number:
            rng = np.random.default_rng([self.seed, number])
            self._drawn = number, _distinct(rng, self.task_count, self.block)
        return self.env, self._drawn[1][place]


def _distinct(rng: np.random.Generator, count: int, number: int) -> list[int]:
    """Return `number` random numbers below `count`. They repeat only if `count` is too small; it may be very large."""
    if number >= count:
        again = rng.integers(count, size=number - count)
        return [int(task) for task in (*rng.permutation(count), *again)]
    numbers: dict[int, None] = {}
    while len(numbers) < number:
        numbers.setdefault(int(rng.integers(count)))
    return list(numbers)


def held_out(arena: Arena, tasks: int) -> list[tuple[str, int]]:
    """Return environment and number of the first `tasks` tasks of an arena. In a mixture, each environment has its
    share of them. If one has too few tasks, all get fewer: metrics over all tasks keep the weights of the mixture.
    """
    wanted_counts, available = counts_in(arena, tasks)
    while any(wanted_counts[env] > count for env, count in available.items()):
        tasks = min(
            tasks - 1, *(tasks * count // wanted_counts[env] for env, count in available.items() if wanted_counts[env])
        )
        wanted_counts, available = counts_in(arena, tasks)
    if empty_envs := [env for env, count in wanted_counts.items() if not count]:
        raise UsageError(f"{tasks} tasks are too few to measure a mixture: {empty_envs[0]} has none by its share")
    return [(env, task) for env, count in wanted_counts.items() for task in range(count)]
