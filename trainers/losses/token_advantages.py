"""Advantages per token: whitened returns, generalized advantage estimation with a critic, and credit per turn.

In this module the tokens of an episode are its sampled tokens. Tool results are skipped: after the last token of a turn
comes the first token of the next turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Episode, Status, is_turn
from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.losses.group_advantages import Advantages, Floats, group_advantages, less_baseline, returns
from palaestra.trainers.validation import NOT_NEGATIVE, SHARE, check_fields

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Whitened:
    """REINFORCE++: the return from each token on, normalized (whitened) over all tokens of the batch (arXiv
    2501.03262).

    The return is the reward; with `kl_in_reward`, the KL of the token and all later ones is subtracted. With
    `group_baseline` this is REINFORCE++-baseline: the reward minus the mean of the group, then whitened.
    """

    group_baseline: bool = False
    """Subtract the mean of the group from the reward before whitening."""

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per sampled token."""
        if self.group_baseline:
            centred_E = less_baseline(returns(batch, scores), batch.groups, lambda rewards_G, _: rewards_G.mean())
            return whitened([np.full(length, value) for value, length in zip(centred_E, batch.lengths, strict=True)])
        return whitened(to_come(batch, scores))


@dataclass(frozen=True, slots=True)
class GAE:
    """Advantages of PPO, with a critic: `sum over l of (gamma * lam)^l * delta` with `delta = r + gamma * V(next) - V`.

    The episode's reward belongs to its last token. With lam 1 and an exact critic, the expected gradient is the exact
    gradient. Advantages are whitened over the tokens of the batch. The critic's target is the advantage before
    whitening plus the value.
    """

    gamma: Annotated[float, SHARE] = 1.0
    """Discount factor per token."""
    lam: Annotated[float, SHARE] = 0.95
    """Lambda of GAE: 1 trusts the reward alone, 0 the critic alone."""
    whiten_advantages: bool = True
    """Normalize over all tokens of the batch to mean 0 and standard deviation 1."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per sampled token."""
        assert scores.values is not None, "GAE asks a critic"
        estimates = self.estimates(batch, scores)
        return whitened(estimates) if self.whiten_advantages else estimates

    def expected(self, batch: Batch, scores: BatchScores) -> list[Floats]:
        """Return the targets of the critic: the advantage estimates plus its earlier predictions."""
        assert scores.values is not None
        pairs = zip(self.estimates(batch, scores), scores.values, strict=True)
        return [estimate_S + values_S for estimate_S, values_S in pairs]

    def estimates(self, batch: Batch, scores: BatchScores) -> list[Floats]:
        """Return the advantages before whitening."""
        assert scores.values is not None
        rewards = token_rewards(batch, scores)
        return [self._of(rewards_S, values_S) for rewards_S, values_S in zip(rewards, scores.values, strict=True)]

    def _of(self, rewards_S: Floats, values_S: NDArray[np.float32]) -> Floats:
        following_S = np.append(values_S[1:], 0.0).astype(np.float64)[: len(values_S)]
        delta_S = rewards_S + self.gamma * following_S - values_S
        advantages_S, later = np.zeros_like(delta_S), 0.0
        for place in range(len(delta_S) - 1, -1, -1):
            later = float(delta_S[place]) + self.gamma * self.lam * later
            advantages_S[place] = later
        return advantages_S


@dataclass(frozen=True, slots=True)
class TurnAdvantage:
    """Credit per turn: each token has the advantage of its episode plus `turn_weight` times the advantage of its turn.

    The reward of a turn is the share of its calls that succeeded. It is compared with the turns of the same number in
    the group (mean and deviation, as in `GroupNormalized`). A turn without a call, such as the last one, has no
    advantage of its own.
    """

    turn_weight: Annotated[float, NOT_NEGATIVE] = 0.2
    """Weight of the turn-level advantage. The episode-level advantage has weight 1."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, batch: Batch, scores: BatchScores) -> Advantages:
        """Return one number per sampled token."""
        whole_E = group_advantages(returns(batch, scores), batch.groups)
        served = [served_by_turn(episode) for episode in batch.episodes]
        turn_advantages = [np.zeros(len(turn_shares)) for turn_shares in served]
        for turn in range(max(map(len, served), default=0)):
            there = [
                i for i, turn_shares in enumerate(served) if len(turn_shares) > turn and turn_shares[turn] is not None
            ]
            shares = np.array([served[i][turn] for i in there], np.float64)
            for i, value in zip(there, group_advantages(shares, batch.groups[there]), strict=True):
                turn_advantages[i][turn] = value
        advantages = []
        for episode, whole, turns in zip(batch.episodes, whole_E, turn_advantages, strict=True):
            numbers_S = turn_of_tokens(episode)
            credits_S = np.append(turns, 0.0)[np.minimum(numbers_S, len(turns))] if len(numbers_S) else numbers_S
            advantages.append(whole + self.turn_weight * credits_S)
        return advantages


def served_by_turn(episode: Episode) -> list[float | None]:
    """Return, for each turn of the agent, the share of its calls that succeeded; None for a turn without calls, and
    where the messages are several dialogues, which do not tell whose call a result is of."""
    if episode.attempt.dialogues:
        return [None] * sum(map(is_turn, episode.attempt.messages))
    shares: list[float | None] = []
    calls = iter(episode.attempt.calls)
    for message in episode.attempt.messages:
        if is_turn(message):
            shares.append(None)
            call_count, served = 0, 0
        elif message["role"] == "tool" and shares:
            call = next(calls, None)
            if call is not None:
                call_count, served = call_count + 1, served + (call.status is Status.OK)
                shares[-1] = served / call_count
    return shares


def turn_of_tokens(episode: Episode) -> NDArray[np.int_]:
    """Return the turn number of each sampled token. Sampled tokens with no other token between them are one turn."""
    numbers, turn = [np.zeros(0, np.int_)], 0
    for row in episode.rows:
        begins_N = row.sampled & ~np.concatenate([[False], row.sampled[:-1]])
        numbers.append((turn - 1 + np.cumsum(begins_N))[row.sampled])
        turn += int(begins_N.sum())
    return np.concatenate(numbers)


def token_rewards(batch: Batch, scores: BatchScores) -> list[Floats]:
    """Return the reward of each sampled token: its KL cost with a minus sign; the last token gets the episode's reward
    in addition.
    """
    rewards = []
    for i, (reward, length) in enumerate(zip(batch.rewards, batch.lengths, strict=True)):
        paid_S = np.zeros(length) if scores.costs is None else -scores.costs[i].astype(np.float64)
        if length:
            paid_S[-1] += reward
        rewards.append(paid_S)
    return rewards


def to_come(batch: Batch, scores: BatchScores) -> list[Floats]:
    """Return for each token the sum of its own reward and of all later tokens' rewards."""
    return [paid_S[::-1].cumsum()[::-1] for paid_S in token_rewards(batch, scores)]


def whitened(values: Sequence[Floats]) -> list[Floats]:
    """Return the values normalized over all tokens to mean 0 and deviation 1 (ddof 1); zeros if all are equal."""
    every_S = np.concatenate([np.zeros(0), *values])
    if not len(every_S) or np.ptp(every_S) == 0:
        return [np.zeros_like(values_S) for values_S in values]
    mean, deviation = every_S.mean(), every_S.std(ddof=1)
    return [(values_S - mean) / (deviation + _EPSILON) for values_S in values]
