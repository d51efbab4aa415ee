"""Tasks are drawn by what is believed of them: how likely a group of theirs is to have something to compare.

Of each task a Beta posterior of its success is kept. A task that always succeeds or always fails is seldom played
again, which saves more than any way of dropping its groups. What is believed fades, since the policy changes. For task
sets that are small enough to be met again; the state is a pair of numbers for each task that was met. A
batch is drawn by what was known before it, so that no timing decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from palaestra.errors import ConfigError
from palaestra.trainers.batch import Batch, Scored
from palaestra.trainers.checked import POSITIVE, SHARE, check_fields
from palaestra.trainers.sampling.draws import Deal, TaskCount, counts_of
from palaestra.trainers.sampling.in_order import Groups, InOrder, compared_values

MAX_TASKS = 1_000_000
"""Of a larger set no task is met twice, so that nothing could be known of it."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Sure tasks are seldom played again."""

    prior: Annotated[float, POSITIVE] = 0.5
    """Both parameters of the Beta prior: below 1 it expects tasks to be solved nearly always or nearly never."""
    sharpness: Annotated[float, POSITIVE] = 4.0
    """A task's chance goes by this power of how likely its group is to have something to compare."""
    fading: Annotated[float, Field(gt=0, le=1)] = 0.9
    """What is left of what was known of a task at each new group of it."""
    exploring: Annotated[float, SHARE] = 0.02
    """Share of groups that are drawn evenly, so that nothing is given up for ever."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> "Believing":
        """A sampler, as `Uniform` makes one."""
        counts = counts_of(env, task_count)
        for name, count in counts.items():
            if count > MAX_TASKS:
                raise ConfigError(
                    f"{name} has {count:,} tasks, and the posterior sampler knows something only of tasks that it "
                    f"meets again: at most {MAX_TASKS:,}; play a file of tasks (--env-options tasks=FILE), or use "
                    "another sampler"
                )
        return Believing(Deal(env, seed), counts, groups, self, seed)


class Believing(InOrder):
    """Groups in order, of tasks drawn by belief as a group is begun."""

    def __init__(
        self, deal: Deal, task_counts: Mapping[str, int], groups: Groups, options: Posterior, seed: int
    ) -> None:
        self._deal, self._options, self._seed = deal, options, seed
        self._known = {env: np.full((count, 2), options.prior) for env, count in task_counts.items()}
        self._drawn: dict[int, tuple[str, int]] = {}
        super().__init__(self._draw, groups)

    def batch(self) -> Batch | None:
        """The batch; what it says of its tasks is known from then on."""
        made = super().batch()
        if made is None:
            return None
        groups: dict[int, list[Scored]] = {}
        for scored in made.played:
            if not scored.episode.start.greedy:  # It succeeds more often, or less, than what is learned from.
                groups.setdefault(self._number(scored.episode.start), []).append(scored)
        prior = self._options.prior
        for number, members in groups.items():
            values = [value for of_seat in compared_values(members, "success").values() for value in of_seat]
            solved, (env, task) = sum(values), self._drawn[number]
            known = self._known[env][task]
            known[:] = prior + (known - prior) * self._options.fading
            known += (solved, len(values) - solved)
        return replace(made, state=self.state())

    def state(self) -> Mapping[str, Any]:
        """Beside the groups, what is known of tasks that were met."""
        met = {env: np.flatnonzero((known != self._options.prior).any(1)) for env, known in self._known.items()}
        known = {env: {str(task): self._known[env][task].tolist() for task in tasks} for env, tasks in met.items()}
        return {**super().state(), "known": known}

    def load(self, state: Mapping[str, Any]) -> None:
        """With what was known then."""
        super().load(state)
        self._drawn.clear()
        for env, known in self._known.items():
            known[:] = self._options.prior
            for task, pair in state.get("known", {}).get(env, {}).items():
                known[int(task)] = pair

    def _draw(self, group: int) -> tuple[str, int]:
        """By what is known when the group is begun."""
        if group not in self._drawn:
            self._drawn = {number: drawn for number, drawn in self._drawn.items() if number >= self._first}
            env, _ = self._deal(group)
            rng = np.random.default_rng([self._seed, group, 4])
            chances = liveness(self._known[env], self.groups.num_generations) ** self._options.sharpness
            chances[[task for of, task in self._drawn.values() if of == env]] = 0.0  # Being played already.
            if rng.random() < self._options.exploring or not chances.any():
                chances = np.ones(len(chances))
            self._drawn[group] = env, int(rng.choice(len(chances), p=chances / chances.sum()))
        return self._drawn[group]


def liveness(known: NDArray[np.float64], members: int) -> NDArray[np.float64]:
    """The chance of a group of so many that it holds a success and a failure, for each Beta posterior."""
    solved, failed = known[:, 0], known[:, 1]
    steps = np.arange(members)[:, None]
    every = solved + failed + steps
    all_solved = ((solved + steps) / every).prod(0)
    all_failed = ((failed + steps) / every).prod(0)
    found: NDArray[np.float64] = np.clip(1 - all_solved - all_failed, 0.0, 1.0)
    return found
