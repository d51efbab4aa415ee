"""Sample tasks by the estimated probability that their group has different outcomes.

For each task the sampler keeps a Beta posterior of its success rate. A task that always succeeds or always fails is
seldom played again, which saves more tokens than dropping its groups. The posterior decays, because the policy changes.
The sampler is for small task sets, in which tasks repeat; its state is a pair of numbers for each played task. The
posterior changes only between two batches, so that the order in which episodes end has no influence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from palaestra.errors import ConfigError
from palaestra.trainers.batch import Batch, Scored
from palaestra.trainers.samplers.group_sampler import Groups, InOrder, compared_values
from palaestra.trainers.samplers.task_of_group import Deal, TaskCount, counts_of
from palaestra.trainers.validation import POSITIVE, SHARE, check_fields

MAX_TASKS = 1_000_000
"""Largest number of tasks. In a larger set hardly any task repeats, so its posterior would stay the prior."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Options of the posterior sampler, which seldom repeats a task that always succeeds or always fails."""

    prior: Annotated[float, POSITIVE] = 0.5
    """Both parameters of the Beta prior: below 1 it expects tasks to be solved nearly always or nearly never."""
    sharpness: Annotated[float, POSITIVE] = 4.0
    """Exponent: a task's chance is proportional to the probability that its group has different outcomes, to this
    power."""
    fading: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Factor of the earlier evidence on a task at each new group of it."""
    exploring: Annotated[float, SHARE] = 0.02
    """Share of groups whose task is drawn uniformly, so that no task is excluded for ever."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> "Believing":
        """Return a sampler for an environment or for a mixture."""
        counts = counts_of(env, task_count)
        for name, count in counts.items():
            if count > MAX_TASKS:
                raise ConfigError(
                    f"{name} has {count:,} tasks; the posterior sampler supports at most {MAX_TASKS:,}, because it "
                    "needs tasks to repeat. Use a file of tasks (--env-options tasks=FILE), or another sampler"
                )
        return Believing(Deal(env, seed), counts, groups, self, seed)


class Believing(InOrder):
    """Sampler of groups in order. A group's task is drawn with probabilities from the posteriors when it starts."""

    def __init__(
        self, deal: Deal, task_counts: Mapping[str, int], groups: Groups, options: Posterior, seed: int
    ) -> None:
        self._deal, self._options, self._seed = deal, options, seed
        self._known = {env: np.full((count, 2), options.prior) for env, count in task_counts.items()}
        self._drawn: dict[int, tuple[str, int]] = {}
        super().__init__(self._draw, groups)

    def batch(self) -> Batch | None:
        """Return the batch if it is complete, and update the posterior with its outcomes."""
        batch = super().batch()
        if batch is None:
            return None
        groups: dict[int, list[Scored]] = {}
        for scored in batch.rollouts:
            if not scored.episode.start.greedy:  # Its success rate differs from that of sampled episodes.
                groups.setdefault(self._number(scored.episode.start), []).append(scored)
        prior = self._options.prior
        for number, members in groups.items():
            values = [value for of_seat in compared_values(members, "success").values() for value in of_seat]
            solved, (env, task) = sum(values), self._drawn[number]
            posterior = self._known[env][task]
            posterior[:] = prior + (posterior - prior) * self._options.fading
            posterior += (solved, len(values) - solved)
        return replace(batch, state=self.state())

    def state(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint: the state of `InOrder`, and the posterior of each task that was played."""
        met = {
            env: np.flatnonzero((posteriors != self._options.prior).any(1)) for env, posteriors in self._known.items()
        }
        posteriors = {env: {str(task): self._known[env][task].tolist() for task in tasks} for env, tasks in met.items()}
        return {**super().state(), "known": posteriors}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned, including the posteriors."""
        super().load(state)
        self._drawn.clear()
        for env, posterior in self._known.items():
            posterior[:] = self._options.prior
            for task, pair in state.get("known", {}).get(env, {}).items():
                posterior[int(task)] = pair

    def _draw(self, group: int) -> tuple[str, int]:
        """Return a group's environment and task. On the first call for a group, draw its task with the posteriors."""
        if group not in self._drawn:
            self._drawn = {
                number: env_and_task for number, env_and_task in self._drawn.items() if number >= self._first
            }
            env, _ = self._deal(group)
            rng = np.random.default_rng([self._seed, group, 4])
            chances = liveness(self._known[env], self.groups.num_generations) ** self._options.sharpness
            chances[[task for of, task in self._drawn.values() if of == env]] = 0.0  # Already in progress.
            if rng.random() < self._options.exploring or not chances.any():
                chances = np.ones(len(chances))
            self._drawn[group] = env, int(rng.choice(len(chances), p=chances / chances.sum()))
        return self._drawn[group]


def liveness(posteriors: NDArray[np.float64], members: int) -> NDArray[np.float64]:
    """Return the probability, for each Beta posterior, that a group of `members` has a success and a failure."""
    solved, failed = posteriors[:, 0], posteriors[:, 1]
    steps = np.arange(members)[:, None]
    every = solved + failed + steps
    all_solved = ((solved + steps) / every).prod(0)
    all_failed = ((failed + steps) / every).prod(0)
    probabilities: NDArray[np.float64] = np.clip(1 - all_solved - all_failed, 0.0, 1.0)
    return probabilities
