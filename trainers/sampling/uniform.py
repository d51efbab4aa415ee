"""Tasks drawn evenly, and every group that is played is learned from."""

from collections.abc import Sequence
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
    ) -> InOrder:
        """A sampler; in a game each seat has groups of its own, and those of the `learning` ones (all where none is
        named) are learned from.
        """
        block = task_count if self.epochs and task_count <= _LARGEST_EPOCH else num_prompts
        groups = Groups(num_prompts, num_generations, tuple(seats), frozenset(learning or seats))
        return InOrder(Even(env, task_count, block, seed), groups)
