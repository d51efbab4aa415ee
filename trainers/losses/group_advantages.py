"""Advantages of episodes relative to the other episodes of their group.

An advantage is a function `(batch, scores) -> one value per sample`: a number for the episode, or an array with one
number for each of its sampled tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.validation import check_fields

_EPSILON = 1e-6
Floats = NDArray[np.float64]
Baseline = Callable[[Floats, Floats], "float | Floats"]
"""Function from the rewards and lengths of a group to its baseline: one number, or one per member."""
Advantages = Sequence[float] | Sequence[NDArray[np.float64]] | NDArray[np.float64]


class Advantage(Protocol):
    """Function that computes advantages from a batch and its scores."""

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one value per sample."""


@dataclass(frozen=True, slots=True)
class GroupNormalized:
    """`(reward - mean) / (std + 1e-6)` within each group, std with ddof 1 (arXiv 2510.11701, eq. 3).

    If all rewards in a group are equal, the advantages are exactly zero. Rewards are compared, not the standard
    deviation, which rounding can leave above zero. A group of one episode gets zero too. Without the division by std
    this is the advantage of Dr.GRPO (arXiv 2503.20783): its gradient is the exact gradient times (G - 1) / G.
    """

    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Which standard deviation divides the advantages: that of the group, that of the batch, or none."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per episode."""
        rewards_E = returns(batch, scores)
        if self.scale_rewards == "group":
            return group_advantages(rewards_E, batch.groups)
        centred_E = less_baseline(rewards_E, batch.groups, lambda rewards_G, _: rewards_G.mean())
        spread = rewards_E.std(ddof=1) if self.scale_rewards == "batch" and np.ptp(rewards_E) > 0 else 1 - _EPSILON
        return centred_E / (spread + _EPSILON)


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """RLOO: the reward minus the mean of the group's other rewards (arXiv 2402.14740).

    This equals `G / (G - 1) * (reward - mean)`. It is unbiased: the expected gradient is the exact gradient.
    """

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per episode."""

        def others(rewards_G: Floats, _: Floats) -> Floats:
            means: Floats = (rewards_G.sum() - rewards_G) / max(1, len(rewards_G) - 1)
            return means

        return less_baseline(returns(batch, scores), batch.groups, others)


@dataclass(frozen=True, slots=True)
class OptimalBaseline:
    """OPO: the reward minus `sum(length * reward) / sum(length)`, the length-weighted group mean (arXiv 2505.23585).

    With equal lengths it is the advantage of Dr.GRPO.
    """

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per episode."""

        def weighted(rewards_G: Floats, lengths_G: Floats) -> float:
            return float(rewards_G @ lengths_G / lengths_G.sum()) if lengths_G.any() else float(rewards_G.mean())

        return less_baseline(returns(batch, scores), batch.groups, weighted, np.array(batch.lengths, np.float64))


@dataclass(frozen=True, slots=True)
class GreedyBaseline:
    """ReMax: the reward minus the reward of a greedy episode of the same task (arXiv 2310.10505). It is unbiased.

    The greedy episode is not trained on. If it has no reward, the other episodes of the task get zeros. In a game, all
    seats of the greedy episode sample greedily.
    """

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per episode."""
        starts = [(scored.episode.start, scored) for scored in batch.rollouts]
        greedy = {
            start.group: scored.reward
            for start, scored in starts
            if start.greedy and scored.terms is not None and not scored.episode.fault
        }
        # The group index of a copy is not that of its start.
        groups = [episode.start.group for episode in batch.episodes]
        pairs = zip(returns(batch, scores), groups, strict=True)
        return [reward - greedy[group] if group in greedy else 0.0 for reward, group in pairs]


@dataclass(frozen=True, slots=True)
class Successes:
    """A control experiment: imitate rewarded episodes and ignore all others. No baseline, no negative advantages."""

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return 1 or 0 per episode."""
        return (returns(batch, scores) > 0).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Shuffled:
    """A control experiment: rewards are shuffled over the batch. If success still rises, rewards are not the cause."""

    shuffle: int = 0
    """Seed of the shuffling."""

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per episode."""
        rng = np.random.default_rng([self.shuffle, 2])
        # Each batch has its own order, which depends only on the seed and the batch number.
        for _ in range(batch.number + 1):
            order = rng.permutation(len(batch.rewards))
        return group_advantages(returns(batch, scores)[order], batch.groups)


def returns(batch: Batch, scores: BatchScores) -> Floats:
    """Return the training reward of each sample, minus the KL costs of its tokens if the KL is part of the reward."""
    if scores.costs is None:
        return batch.rewards
    costs_E: Floats = np.array([float(cost_S.sum()) for cost_S in scores.costs])
    return batch.rewards - costs_E


def less_baseline(
    rewards_E: Floats, groups_E: NDArray[np.int_], baseline: Baseline, lengths_E: Floats | None = None
) -> Floats:
    """Return the rewards minus the baseline of their group; exact zeros if a group's rewards are equal."""
    lengths_E = np.ones_like(rewards_E) if lengths_E is None else lengths_E
    advantages_E = np.zeros_like(rewards_E)
    for group in np.unique(groups_E):
        members = groups_E == group
        rewards_G = rewards_E[members]
        if np.ptp(rewards_G) > 0:
            advantages_E[members] = rewards_G - baseline(rewards_G, lengths_E[members])
    return advantages_E


def damped(advantages: Advantages, batch: Batch, bound: float | None) -> Advantages:
    """Return the advantages times the sample weights, clipped to `bound`; None means no bound."""
    limit = np.inf if bound is None else bound
    pairs = zip(advantages, batch.samples, strict=True)
    return [np.clip(np.asarray(value, np.float64) * sample.weight, -limit, limit) for value, sample in pairs]


def group_advantages(rewards_E: NDArray[np.float64], groups_E: NDArray[np.int_]) -> NDArray[np.float64]:
    """Return the advantages of `GroupNormalized` with `scale_rewards="group"`."""
    advantages_E = np.zeros_like(rewards_E)
    for group in np.unique(groups_E):
        members = groups_E == group
        rewards_G = rewards_E[members]
        if np.ptp(rewards_G) > 0:
            advantages_E[members] = (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + _EPSILON)
    return advantages_E
