"""Tasks drawn evenly, and every group that is played is learned from."""

from dataclasses import dataclass

from palaestra.trainers.sampling.draws import Even
from palaestra.trainers.sampling.in_order import Groups, InOrder

_LARGEST_EPOCH = 10_000_000
"""Larger sets are drawn from by batches: no run comes to their end."""


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every task is as likely as any other."""

    epochs: bool = False
    """Play every task once before any comes again; else each batch is drawn anew."""

    def __call__(self, env: str, task_count: int, groups: Groups, seed: int = 0) -> InOrder:
        """A sampler."""
        block = task_count if self.epochs and task_count <= _LARGEST_EPOCH else groups.num_prompts
        return InOrder(Even(env, task_count, block, seed), groups)
