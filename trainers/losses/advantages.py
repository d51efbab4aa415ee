"""How much better an episode was than the others of its group.

An advantage is `(batch, seen) -> one value a sample`: a number for the episode, or an array with one for each of its
sampled tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from palaestra.trainers.batch import Batch, Seen

_EPSILON = 1e-6
Advantages = Sequence[float] | Sequence[NDArray[np.float64]] | NDArray[np.float64]


class Advantage(Protocol):
    """Turns the rewards of a batch, and what the learner has seen of it, into advantages."""

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One value a sample."""


@dataclass(frozen=True, slots=True)
class Group:
    """`(reward - mean) / (std + 1e-6)` within each group, std with ddof 1 (arXiv 2510.11701, eq. 3).

    A group whose rewards are equal gets exact zeros: its rewards are compared, not a standard deviation, which
    rounding can leave above zero. A group of one has nothing to be compared with and gets its zero too.
    """

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number an episode."""
        return group_advantages(batch.rewards, batch.groups)


@dataclass(frozen=True, slots=True)
class Successes:
    """A control: imitate what was paid, ignore the rest. No comparison, no negative lesson."""

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """1 or 0 an episode."""
        return (batch.rewards > 0).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """A control: rewards dealt out anew over the whole batch. Any rise left is not learned from them."""

    shuffle: int = 0
    """Seed of the dealing."""

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number an episode."""
        rng = np.random.default_rng([self.shuffle, 2])
        for _ in range(batch.number + 1):  # Each batch has a dealing of its own, the same whenever it is asked for.
            order = rng.permutation(len(batch.rewards))
        return group_advantages(batch.rewards[order], batch.groups)


ADVANTAGES = {"group": Group, "successes": Successes, "shuffled": Shuffled}


def group_advantages(rewards_E: NDArray[np.float64], groups_E: NDArray[np.int_]) -> NDArray[np.float64]:
    """The advantages of `Group`."""
    advantages_E = np.zeros_like(rewards_E)
    for group in np.unique(groups_E):
        members = groups_E == group
        rewards_G = rewards_E[members]
        if np.ptp(rewards_G) > 0:
            advantages_E[members] = (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + _EPSILON)
    return advantages_E
