"""Check advantages before the update: recompute them by the closed form of the recipe's advantage, from the terms of
each episode, the weight of its sample and the recipe's bound.

The code that computed the advantages is not used, so that its mistakes are not repeated. The turns of an episode, and
the KL and critic values of a token, are not checked. Left out: control runs. A user's own advantage is checked for what
it declares (`config.part_protocols`): a closed form, an order, or finite values, one per sample or one per token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.trainers.audit.audit_findings import AuditFinding, place_of
from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.config.recipes import Recipe
from palaestra.trainers.losses.group_advantages import (
    Advantages,
    Floats,
    GreedyBaseline,
    GroupNormalized,
    LeaveOneOut,
    OptimalBaseline,
)
from palaestra.trainers.losses.token_advantages import GAE, TurnAdvantage, Whitened, served_by_turn, turn_of_tokens
from palaestra.trainers.losses.tree_advantages import TreeNormalized, trees_of

_Values = Sequence[Any] | Floats
"""One value per sample: a number, or an array with one number for each of its sampled tokens."""
_EPSILON, _WHITENING_EPSILON = 1e-6, 1e-8
_CLOSE = 1e-6
_CLOSE_SHARE = 1e-4


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Data of a batch from which the closed forms of advantages (`_FORMS`) are computed."""

    batch: Batch
    scores: BatchScores
    paid: Sequence[Floats]
    """Reward of each sampled token: minus its KL cost, plus the episode's reward at the last token."""
    rewards_E: Floats
    """Reward of each sample, minus the KL cost of all its tokens."""
    groups_E: NDArray[np.int_]
    """Group index of each sample, from 0 without gaps."""

    def mean(self, values_E: Floats) -> Floats:
        """Return, for each sample, the mean of its group."""
        means_E: Floats = (np.bincount(self.groups_E, values_E) / np.bincount(self.groups_E))[self.groups_E]
        return means_E


def shape_findings(batch: Batch, scores: BatchScores, values: Advantages) -> Iterator[AuditFinding]:
    """Check that advantages are finite, one per sample or one per token, and that critic values are finite."""
    for scored, expected_S in zip(batch.scored, scores.values or (), strict=False):
        if not np.isfinite(expected_S).all():
            details = f"what it expects before {int((~np.isfinite(expected_S)).sum())} tokens is no number"
            yield AuditFinding("critic", place_of(scored.episode), details)
            return
    if len(values) != len(batch.samples):
        yield AuditFinding("advantages", "the batch", f"{len(values)} advantages for {len(batch.samples)} samples")
        return
    for scored, value, length in zip(batch.scored, values, batch.lengths, strict=True):
        numbers = np.atleast_1d(value)
        if not np.isfinite(numbers).all() or (np.ndim(value) and len(numbers) != length):
            details = f"{len(numbers)} advantages for {length} tokens, {int((~np.isfinite(numbers)).sum())} no numbers"
            yield AuditFinding("advantages", place_of(scored.episode), details)
            return


def advantage_findings(
    recipe: Recipe, batch: Batch, scores: BatchScores, values: Advantages, *, means: bool = False
) -> Iterator[AuditFinding]:
    """Check advantages against the closed form of the recipe, with the weights of the samples and the recipe's bound.
    With `means`, `values` has one value per episode: the mean over its tokens.
    """
    advantage, form = recipe.advantage, _FORMS.get(type(recipe.advantage))
    if not batch.samples:
        return
    inputs = _inputs(batch, scores, charged=recipe.kl.kl_in_reward)
    if form is not None:
        expected = form(advantage, inputs)
    elif hasattr(advantage, "closed_form"):
        expected = advantage.closed_form(batch, scores)
    else:
        yield from _order_findings(inputs, values) if getattr(advantage, "ordered", False) else ()
        return
    bound = np.inf if recipe.max_advantage is None else recipe.max_advantage
    sizes = np.array([np.size(value) for value in expected])
    owners_N = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.array([sample.weight for sample in batch.samples])
    expected_N = np.clip(_joined(expected) * weights[owners_N], -bound, bound)
    if means:
        expected_N = np.bincount(owners_N, expected_N, len(sizes)) / np.maximum(sizes, 1)
        owners_N = np.arange(len(sizes))
        sizes = np.ones_like(sizes)
    reported = [
        value if np.size(value) == size else np.full(size, value) for value, size in zip(values, sizes, strict=True)
    ]
    reported_N = _joined(reported)
    # In this form a NaN counts as wrong.
    wrong_N = ~(np.abs(reported_N - expected_N) <= _CLOSE_SHARE * np.abs(expected_N) + _CLOSE)
    reported_groups: set[int] = set()
    for place in np.unique(owners_N[wrong_N]).tolist():
        group = int(inputs.groups_E[place])
        if group in reported_groups:
            continue
        reported_groups.add(group)
        rewards, in_sample_N = _listed(inputs.rewards_E[inputs.groups_E == group]), owners_N == place
        details = f"in a group of the rewards {rewards} it has the advantage {_listed(reported_N[in_sample_N])}"
        yield AuditFinding(
            "advantages",
            place_of(batch.episodes[place]),
            f"{details}, computed anew {_listed(expected_N[in_sample_N])}",
        )


def _order_findings(inputs: _Inputs, values: Advantages) -> Iterator[AuditFinding]:
    """Check that within a group no higher reward has a lower advantage, among samples of equal weight."""
    means_E = np.array([float(np.mean(value)) if np.size(value) else np.nan for value in values])
    weights_E = np.array([sample.weight for sample in inputs.batch.samples])
    for group, weight in sorted({*zip(inputs.groups_E.tolist(), weights_E.tolist(), strict=True)}):
        members = np.flatnonzero((inputs.groups_E == group) & (weights_E == weight) & ~np.isnan(means_E))
        members = members[np.lexsort((means_E[members], inputs.rewards_E[members]))]
        rewards_G, means_G = inputs.rewards_E[members], means_E[members]
        lower_G = (np.diff(rewards_G) > 0) & (np.diff(means_G) < -_CLOSE)
        if lower_G.any():
            place = int(members[1 + int(np.argmax(lower_G))])
            details = (
                f"in a group of the rewards {_listed(rewards_G)} the advantages are not in order: {_listed(means_G)}"
            )
            yield AuditFinding("advantages", place_of(inputs.batch.episodes[place]), details)


def compared_in_groups(recipe: Recipe) -> bool:
    """Return whether the records of some whole groups are enough to check their advantages."""
    advantage = recipe.advantage
    in_group = isinstance(advantage, GroupNormalized) and advantage.scale_rewards != "batch"
    return (
        in_group
        or getattr(advantage, "ordered", False)
        or isinstance(advantage, LeaveOneOut | OptimalBaseline | TurnAdvantage | TreeNormalized)
    )


def _inputs(batch: Batch, scores: BatchScores, *, charged: bool) -> _Inputs:
    rewards_E = np.array([sum((scored.terms or {}).values()) for scored in batch.scored], np.float64)
    costs = scores.costs if charged else None
    paid = []
    for place, length in enumerate(batch.lengths):
        paid.append(np.zeros(length) if costs is None else -costs[place].astype(np.float64))
        if length:
            paid[-1][-1] += rewards_E[place]
    if costs is not None:
        rewards_E -= [cost_S.sum() for cost_S in costs]
    groups_E = np.unique(batch.groups, return_inverse=True)[1]
    return _Inputs(batch, scores, paid, rewards_E, groups_E)


def _group(advantage: GroupNormalized, inputs: _Inputs) -> _Values:
    centred_E = inputs.rewards_E - inputs.mean(inputs.rewards_E)
    if advantage.scale_rewards == "none":
        return centred_E
    if advantage.scale_rewards == "group":
        return _standardized(inputs.rewards_E, inputs.groups_E)
    return centred_E / (_deviation(inputs.rewards_E) + _EPSILON)


def _tree(_: TreeNormalized, inputs: _Inputs) -> _Values:
    in_group_E = _standardized(inputs.rewards_E, inputs.groups_E)
    return in_group_E + _standardized(inputs.rewards_E, trees_of(inputs.batch))


def _leave_one_out(_: LeaveOneOut, inputs: _Inputs) -> _Values:
    counts_E = np.bincount(inputs.groups_E)[inputs.groups_E]
    return (inputs.rewards_E - inputs.mean(inputs.rewards_E)) * counts_E / np.maximum(counts_E - 1, 1)


def _optimal_baseline(_: OptimalBaseline, inputs: _Inputs) -> _Values:
    lengths_E = np.array(inputs.batch.lengths, np.float64)
    lengths_E[inputs.mean(lengths_E) == 0] = 1.0
    return inputs.rewards_E - inputs.mean(inputs.rewards_E * lengths_E) / inputs.mean(lengths_E)


def _greedy_baseline(_: GreedyBaseline, inputs: _Inputs) -> _Values:
    baselines = {
        scored.episode.start.group: sum(scored.terms.values())
        for scored in inputs.batch.rollouts
        if scored.episode.start.greedy and scored.terms is not None and not scored.episode.fault
    }
    groups = [episode.start.group for episode in inputs.batch.episodes]
    pairs = zip(inputs.rewards_E, groups, strict=True)
    return [np.float64(reward - baselines[group] if group in baselines else 0.0) for reward, group in pairs]


def _turns(advantage: TurnAdvantage, inputs: _Inputs) -> _Values:
    whole_E = _standardized(inputs.rewards_E, inputs.groups_E)
    served = [served_by_turn(episode) for episode in inputs.batch.episodes]
    turn_shares = [
        (i, turn, share)
        for i, shares_T in enumerate(served)
        for turn, share in enumerate(shares_T)
        if share is not None
    ]
    max_turns = max(map(len, served))
    credits_ET = np.zeros((len(served), max_turns + 1))  # The last column is 0, for tokens after all turns.
    if turn_shares:
        places, turns, shares = (np.array(column) for column in zip(*turn_shares, strict=True))
        alike = np.unique(inputs.groups_E[places] * (max_turns + 1) + turns, return_inverse=True)[1]
        credits_ET[places, turns] = _standardized(shares.astype(np.float64), alike)
    numbers = [np.minimum(turn_of_tokens(episode), max_turns) for episode in inputs.batch.episodes]
    rows = zip(whole_E, credits_ET, numbers, strict=True)
    return [whole + advantage.turn_weight * credits_T[turn_S] for whole, credits_T, turn_S in rows]


def _whitened(advantage: Whitened, inputs: _Inputs) -> _Values:
    if not advantage.group_baseline:
        return _whiten([paid_S.sum() - (paid_S.cumsum() - paid_S) for paid_S in inputs.paid])
    centred_E = inputs.rewards_E - inputs.mean(inputs.rewards_E)
    return _whiten([np.full(length, value) for value, length in zip(centred_E, inputs.batch.lengths, strict=True)])


def _gae(advantage: GAE, inputs: _Inputs) -> _Values:
    advantages = []
    for paid_S, prediction_S in zip(inputs.paid, inputs.scores.values or (), strict=True):
        value_S = prediction_S.astype(np.float64)
        sum_S = paid_S - value_S + advantage.gamma * np.append(value_S, 0.0)[1:][: len(value_S)]
        span, factor = 1, advantage.gamma * advantage.lam
        while span < len(sum_S):  # Each element is the sum of `span` terms; add the next `span` terms.
            sum_S[:-span] += factor**span * sum_S[span:]
            span *= 2
        advantages.append(sum_S)
    return _whiten(advantages) if advantage.whiten_advantages else advantages


_FORMS: dict[type, Callable[[Any, _Inputs], _Values]] = {
    GroupNormalized: _group,
    LeaveOneOut: _leave_one_out,
    TreeNormalized: _tree,
    OptimalBaseline: _optimal_baseline,
    GreedyBaseline: _greedy_baseline,
    TurnAdvantage: _turns,
    Whitened: _whitened,
    GAE: _gae,
}
"""Closed form by exact class of the advantage: a subclass may compute anything."""


def _standardized(values_E: Floats, alike_E: NDArray[np.int_]) -> Floats:
    """Return each value minus the mean of its group, divided by the group's standard deviation (ddof 1)."""
    counts = np.bincount(alike_E)
    centred_E = values_E - (np.bincount(alike_E, values_E) / counts)[alike_E]
    variance = np.bincount(alike_E, centred_E**2) / np.maximum(counts - 1, 1)
    standardized_E: Floats = centred_E / (np.sqrt(variance)[alike_E] + _EPSILON)
    return standardized_E


def _whiten(values: Sequence[Floats]) -> Sequence[Floats]:
    every_S = np.concatenate(values)
    mean = every_S.mean() if len(every_S) else 0.0
    return [(sample_S - mean) / (_deviation(every_S) + _WHITENING_EPSILON) for sample_S in values]


def _deviation(values: Floats) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _joined(values: _Values) -> Floats:
    return values if isinstance(values, np.ndarray) else np.concatenate([np.atleast_1d(value) for value in values])


def _listed(values: Floats) -> str:
    first_values = ", ".join(f"{value:.4g}" for value in values[:6])
    return f"[{first_values}{', ...' if len(values) > 6 else ''}]"
