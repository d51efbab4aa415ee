"""Advantages of Tree-GRPO (arXiv 2509.21240): an episode beside its tree, and beside all trees of its task."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.losses.group_advantages import Advantages, group_advantages, returns


@dataclass(frozen=True, slots=True)
class TreeNormalized:
    """`intra + inter`: the reward normalized within the episodes of the tree, and within all episodes of the group.

    Both terms are `(reward - mean) / (std + 1e-6)`, as in `GroupNormalized`. A tree of one episode, or one whose
    rewards are equal, has no first term. So without branches this is `GroupNormalized`. The advantage of a shared turn
    is the sum over the episodes that go through it, because it is trained on in each of them.
    """

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per episode."""
        rewards_E = returns(batch, scores)
        return group_advantages(rewards_E, trees_of(batch)) + group_advantages(rewards_E, batch.groups)


def trees_of(batch: Batch) -> NDArray[np.int_]:
    """Return the index of the tree of each sample, from 0. The episodes of a tree have one seed."""
    pairs = [(sample.group, e.start.seed) for sample, e in zip(batch.samples, batch.episodes, strict=True)]
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return np.array([numbers[pair] for pair in pairs], np.int_)
