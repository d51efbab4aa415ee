"""How much better an episode was than the others of its group.

An advantage is `(batch, seen) -> one value a sample`: a number for the episode, or an array with one for each of its
sampled tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from palaestra.trainers.batch import Batch, Seen
from palaestra.trainers.checked import check_fields

_EPSILON = 1e-6
Floats = NDArray[np.float64]
Baseline = Callable[[Floats, Floats], "float | Floats"]
"""What a group's members are compared with, from their rewards and lengths."""
Advantages = Sequence[float] | Sequence[NDArray[np.float64]] | NDArray[np.float64]


class Advantage(Protocol):
    """Turns the rewards of a batch, and what the learner has seen of it, into advantages."""

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One value a sample."""


@dataclass(frozen=True, slots=True)
class Group:
    """`(reward - mean) / (std + 1e-6)` within each group, std with ddof 1 (arXiv 2510.11701, eq. 3).

    A group whose rewards are equal gets exact zeros: its rewards are compared, not a standard deviation, which
    rounding can leave above zero. A group of one has nothing to be compared with and gets its zero too. Without the
    division it is Dr.GRPO's (arXiv 2503.20783): the exact gradient times (G - 1) / G.
    """

    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Whose standard deviation divides: each group's, the batch's, or nobody's."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number an episode."""
        rewards_E = returns(batch, seen)
        if self.scale_rewards == "group":
            return group_advantages(rewards_E, batch.groups)
        centred_E = less_baseline(rewards_E, batch.groups, lambda rewards_G, _: rewards_G.mean())
        spread = rewards_E.std(ddof=1) if self.scale_rewards == "batch" and np.ptp(rewards_E) > 0 else 1 - _EPSILON
        return centred_E / (spread + _EPSILON)


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """RLOO: the reward less the mean of the others', `G / (G - 1) * (reward - mean)` (arXiv 2402.14740).

    Without bias: its expectation is the exact gradient.
    """

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number an episode."""

        def others(rewards_G: Floats, _: Floats) -> Floats:
            found: Floats = (rewards_G.sum() - rewards_G) / max(1, len(rewards_G) - 1)
            return found

        return less_baseline(returns(batch, seen), batch.groups, others)


@dataclass(frozen=True, slots=True)
class OptimalBaseline:
    """OPO: the reward less `sum(length * reward) / sum(length)`, the group's mean by length (arXiv 2505.23585).

    Where all are as long as one another it is Dr.GRPO's.
    """

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number an episode."""

        def weighted(rewards_G: Floats, lengths_G: Floats) -> float:
            return float(rewards_G @ lengths_G / lengths_G.sum()) if lengths_G.any() else float(rewards_G.mean())

        return less_baseline(returns(batch, seen), batch.groups, weighted, np.array(batch.lengths, np.float64))


@dataclass(frozen=True, slots=True)
class GreedyBaseline:
    """ReMax: the reward less that of an episode of the same task in which the likeliest tokens are taken, which is
    played for this alone and not learned from (arXiv 2310.10505). Without bias.

    Where that episode has no reward, those of its task get zeros. In a game all seats of that episode are greedy.
    """

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number an episode."""
        starts = [(scored.episode.start, scored) for scored in batch.played]
        greedy = {
            start.group: scored.reward
            for start, scored in starts
            if start.greedy and scored.terms is not None and not scored.episode.fault
        }
        groups = [episode.start.group for episode in batch.episodes]  # A copy's own number is of no start.
        pairs = zip(returns(batch, seen), groups, strict=True)
        return [reward - greedy[group] if group in greedy else 0.0 for reward, group in pairs]


@dataclass(frozen=True, slots=True)
class Successes:
    """A control: imitate what was paid, ignore the rest. No comparison, no negative lesson."""

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """1 or 0 an episode."""
        return (returns(batch, seen) > 0).astype(np.float64)


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
        return group_advantages(returns(batch, seen)[order], batch.groups)


def returns(batch: Batch, seen: Seen) -> Floats:
    """The training reward of each sample, less what its tokens cost where the KL is charged to the reward."""
    if seen.costs is None:
        return batch.rewards
    costs_E: Floats = np.array([float(cost_S.sum()) for cost_S in seen.costs])
    return batch.rewards - costs_E


def less_baseline(
    rewards_E: Floats, groups_E: NDArray[np.int_], baseline: Baseline, lengths_E: Floats | None = None
) -> Floats:
    """Rewards less what each group is compared with; a group of equal rewards, or of one, gets exact zeros."""
    lengths_E = np.ones_like(rewards_E) if lengths_E is None else lengths_E
    advantages_E = np.zeros_like(rewards_E)
    for group in np.unique(groups_E):
        members = groups_E == group
        rewards_G = rewards_E[members]
        if np.ptp(rewards_G) > 0:
            advantages_E[members] = rewards_G - baseline(rewards_G, lengths_E[members])
    return advantages_E


def damped(advantages: Advantages, batch: Batch, bound: float | None) -> Advantages:
    """Each sample's by its weight, within a bound."""
    limit = np.inf if bound is None else bound
    pairs = zip(advantages, batch.samples, strict=True)
    return [np.clip(np.asarray(value, np.float64) * sample.weight, -limit, limit) for value, sample in pairs]


def group_advantages(rewards_E: NDArray[np.float64], groups_E: NDArray[np.int_]) -> NDArray[np.float64]:
    """The advantages of `Group`."""
    advantages_E = np.zeros_like(rewards_E)
    for group in np.unique(groups_E):
        members = groups_E == group
        rewards_G = rewards_E[members]
        if np.ptp(rewards_G) > 0:
            advantages_E[members] = (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + _EPSILON)
    return advantages_E
