"""Advantages token by token: returns that are whitened over a batch, a critic's, and credit turn by turn.

An episode's tokens here are those it sampled: what tools said is skipped, so the last token of a turn is followed by
the first of the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Episode, Status
from palaestra.trainers.batch import Batch, Seen
from palaestra.trainers.checked import NOT_NEGATIVE, SHARE, check_fields
from palaestra.trainers.losses.advantages import Advantages, Floats, group_advantages, less_baseline, returns

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Whitened:
    """REINFORCE++: what is still to come after each token, whitened over all tokens of the batch (arXiv 2501.03262).

    What is to come is the reward, and with `kl_in_reward` the KL of the tokens from here on. With `group_baseline` it
    is its baseline form: the reward less the group's mean first, and then whitened.
    """

    group_baseline: bool = False
    """Take the group's mean from the reward before the batch is whitened."""

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number a sampled token."""
        if self.group_baseline:
            centred_E = less_baseline(returns(batch, seen), batch.groups, lambda rewards_G, _: rewards_G.mean())
            return whitened([np.full(length, value) for value, length in zip(centred_E, batch.lengths, strict=True)])
        return whitened(to_come(batch, seen))


@dataclass(frozen=True, slots=True)
class GAE:
    """PPO's, from a critic: `sum over l of (gamma * lam)^l * delta` with `delta = r + gamma * V(next) - V`.

    The reward comes with the last token. At lam 1 and an exact critic its expectation is the exact gradient. Advantages
    are whitened over the batch's tokens; what the critic learns is advantage + value, from before that.
    """

    gamma: Annotated[float, SHARE] = 1.0
    """What the reward loses with each token."""
    lam: Annotated[float, SHARE] = 0.95
    """1 trusts the reward alone, 0 the critic alone."""
    whiten_advantages: bool = True
    """Over all tokens of the batch: mean 0, deviation 1."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number a sampled token."""
        assert seen.values is not None, "GAE asks a critic"
        found = self.estimates(batch, seen)
        return whitened(found) if self.whiten_advantages else found

    def expected(self, batch: Batch, seen: Seen) -> list[Floats]:
        """What the critic is to learn: the estimates and what it expected, together."""
        assert seen.values is not None
        pairs = zip(self.estimates(batch, seen), seen.values, strict=True)
        return [estimate_S + values_S for estimate_S, values_S in pairs]

    def estimates(self, batch: Batch, seen: Seen) -> list[Floats]:
        """The advantages before they are whitened."""
        assert seen.values is not None
        rewards = token_rewards(batch, seen)
        return [self._of(rewards_S, values_S) for rewards_S, values_S in zip(rewards, seen.values, strict=True)]

    def _of(self, rewards_S: Floats, values_S: NDArray[np.float32]) -> Floats:
        following_S = np.append(values_S[1:], 0.0).astype(np.float64)[: len(values_S)]
        delta_S = rewards_S + self.gamma * following_S - values_S
        advantages_S, later = np.zeros_like(delta_S), 0.0
        for place in range(len(delta_S) - 1, -1, -1):
            later = float(delta_S[place]) + self.gamma * self.lam * later
            advantages_S[place] = later
        return advantages_S


@dataclass(frozen=True, slots=True)
class Turns:
    """Credit turn by turn: the episode's advantage for all its tokens, and for a turn how its calls fared beside it.

    A turn's own reward is the share of its calls that a tool served, compared with the turns of the same number in the
    group (mean and deviation, as `Group`); a turn without a call has none. The last turn is the outcome's alone.
    """

    turn_weight: Annotated[float, NOT_NEGATIVE] = 0.2
    """Of a turn's own advantage beside the episode's."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, batch: Batch, seen: Seen) -> Advantages:
        """One number a sampled token."""
        whole_E = group_advantages(returns(batch, seen), batch.groups)
        served = [served_by_turn(episode) for episode in batch.episodes]
        own = [np.zeros(len(one)) for one in served]
        for turn in range(max(map(len, served), default=0)):
            there = [i for i, one in enumerate(served) if len(one) > turn and one[turn] is not None]
            shares = np.array([served[i][turn] for i in there], np.float64)
            for i, value in zip(there, group_advantages(shares, batch.groups[there]), strict=True):
                own[i][turn] = value
        found = []
        for episode, whole, turns in zip(batch.episodes, whole_E, own, strict=True):
            numbers_S = turn_of_tokens(episode)
            known = np.append(turns, 0.0)[np.minimum(numbers_S, len(turns))] if len(numbers_S) else numbers_S
            found.append(whole + self.turn_weight * known)
        return found


def served_by_turn(episode: Episode) -> list[float | None]:
    """For each turn of the agent the share of its calls that a tool served; None for a turn without a call."""
    found: list[float | None] = []
    calls = iter(episode.attempt.calls)
    for message in episode.attempt.messages:
        if message["role"] == "assistant":
            found.append(None)
            asked, served = 0, 0
        elif message["role"] == "tool" and found:
            call = next(calls, None)
            if call is not None:
                asked, served = asked + 1, served + (call.status is Status.OK)
                found[-1] = served / asked
    return found


def turn_of_tokens(episode: Episode) -> NDArray[np.int_]:
    """For each sampled token the number of its turn: sampled tokens without a gap are one turn."""
    numbers, turn = [np.zeros(0, np.int_)], 0
    for row in episode.rows:
        begins_N = row.sampled & ~np.concatenate([[False], row.sampled[:-1]])
        numbers.append((turn - 1 + np.cumsum(begins_N))[row.sampled])
        turn += int(begins_N.sum())
    return np.concatenate(numbers)


def token_rewards(batch: Batch, seen: Seen) -> list[Floats]:
    """What each sampled token is paid: minus its cost, and the episode's reward with the last one."""
    found = []
    for i, (reward, length) in enumerate(zip(batch.rewards, batch.lengths, strict=True)):
        paid_S = np.zeros(length) if seen.costs is None else -seen.costs[i].astype(np.float64)
        if length:
            paid_S[-1] += reward
        found.append(paid_S)
    return found


def to_come(batch: Batch, seen: Seen) -> list[Floats]:
    """What each token and those after it are paid together."""
    return [paid_S[::-1].cumsum()[::-1] for paid_S in token_rewards(batch, seen)]


def whitened(values: Sequence[Floats]) -> list[Floats]:
    """The same with mean 0 and deviation 1 (ddof 1) over all tokens; zeros where all are equal."""
    every_S = np.concatenate([np.zeros(0), *values])
    if not len(every_S) or np.ptp(every_S) == 0:
        return [np.zeros_like(one) for one in values]
    mean, deviation = every_S.mean(), every_S.std(ddof=1)
    return [(one - mean) / (deviation + _EPSILON) for one in values]
