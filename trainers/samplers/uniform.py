"""Uniform task sampling. Every group that is played is trained on."""

from dataclasses import dataclass

from palaestra.trainers.samplers.group_sampler import Groups, InOrder
from palaestra.trainers.samplers.task_of_group import TaskCount, evenly


@dataclass(frozen=True, slots=True)
class Uniform:
    """Sampler part that samples every task with the same probability."""

    epochs: bool = False
    """Play every task once before any repeats; otherwise each batch is sampled independently."""

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> InOrder:
        """Return a sampler for an environment or for a mixture."""
        return InOrder(evenly(env, task_count, groups.num_prompts, seed, self.epochs), groups)
