"""Tasks drawn evenly, each step its own draw: the same step of the same run always draws the same tasks."""

from collections.abc import Iterator

import numpy as np

from palaestra.episode import Start


def uniform_starts(step: int, *, task_count: int, num_prompts: int, num_generations: int, seed: int) -> Iterator[Start]:
    """`num_prompts` different tasks, `num_generations` episodes of each; no two steps share a group or a seed."""
    rng = np.random.default_rng([seed, step])
    tasks = _distinct(rng, task_count, num_prompts)
    for place, task in enumerate(tasks):
        group = step * num_prompts + place
        for member in range(num_generations):
            yield Start(task=task, seed=group * num_generations + member, group=group)


def _distinct(rng: np.random.Generator, count: int, wanted: int) -> list[int]:
    """Different numbers below `count`; with repeats only if there are too few. `count` may be astronomically large."""
    if wanted >= count:
        again = rng.integers(count, size=wanted - count)
        return [int(task) for task in (*rng.permutation(count), *again)]
    drawn: dict[int, None] = {}
    while len(drawn) < wanted:
        drawn.setdefault(int(rng.integers(count)))
    return list(drawn)
