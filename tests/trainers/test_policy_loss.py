"""The clipped policy loss, against values worked by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.losses.aggregation import token_weights
from palaestra.trainers.losses.policy import Clip

TCR = {"epsilon": 0.2, "epsilon_high": 0.28, "dual_clip": 10.0}
SEQUENCE = {"epsilon": 0.5, "epsilon_high": 0.5, "dual_clip": None, "importance_sampling_level": "sequence"}


def moved(log_ratios, advantages, rows=None, **settings):
    """The losses of tokens that moved by these log ratios, their sum's gradient by the log-probs, and the result."""
    old_S = torch.linspace(-3, -1, len(log_ratios))
    new_S = (old_S + torch.tensor(log_ratios)).requires_grad_()
    row_S = torch.tensor(rows or [0] * len(log_ratios))
    result = Clip(**settings)(new_S, old_S, torch.tensor(advantages), row_S)
    (slope_S,) = torch.autograd.grad(result.loss_S.sum(), new_S)
    return result.loss_S.detach(), slope_S, result


def one(ratio, advantage, **changes):
    """Loss and its gradient by the log-prob, for one sampled token."""
    loss_S, slope_S, result = moved([math.log(ratio)], [advantage], **{**TCR, **changes})
    return float(loss_S), float(slope_S), result


@pytest.mark.parametrize(
    ("ratio", "advantage", "low", "high"), [(0.7, -1.0, 1, 0), (0.7, 1.0, 0, 0), (1.4, 1.0, 0, 1), (1.4, -1.0, 0, 0)]
)
def test_what_is_clipped_is_counted_on_the_side_where_it_bites(ratio, advantage, low, high):
    result = one(ratio, advantage)[2]
    assert (result.clipped_low, result.clipped_high) == (low, high)


@pytest.mark.parametrize(
    ("shift", "advantage", "clipped"),
    [(5e-4, 1.0, True), (3.9e-4, 1.0, False), (-4e-4, -1.0, True), (5e-4, -1.0, False)],
)
def test_a_sequence_is_clipped_whole(shift, advantage, clipped):
    """Single tokens far outside the clip do not matter; the mean of the row does."""
    narrow = {**SEQUENCE, "epsilon": 3e-4, "epsilon_high": 4e-4}
    _, slope_S, result = moved([shift + 0.05, shift - 0.05, shift], [advantage] * 3, **narrow)
    assert bool((slope_S == 0).all()) is clipped
    assert result.clipped_low + result.clipped_high == 3 * clipped


def test_a_row_has_a_ratio_of_its_own():
    wide = {**SEQUENCE, "epsilon": 0.9, "epsilon_high": 9.0}
    loss_S, _, _ = moved([0.2, 0.0, 0.3, 0.3, 0.0], [1.0] * 2 + [-1.0] * 3, [0, 0, 1, 1, 1], **wide)
    assert loss_S.tolist() == pytest.approx([-math.exp(0.1)] * 2 + [math.exp(0.2)] * 3, rel=1e-5)


@pytest.mark.parametrize("settings", [SEQUENCE, {**TCR, "dual_clip": None}], ids=["sequence", "token"])
def test_a_ratio_that_ran_away_has_a_finite_loss(settings):
    """exp(95) is no float32, and times a gradient of 0 it would be no number at all."""
    loss_S, slope_S, _ = moved([90.0, 95.0], [-1.0, -1.0], **settings)
    assert loss_S.tolist() == pytest.approx([math.exp(10)] * 2, rel=1e-5)
    assert bool(torch.isfinite(slope_S).all())
    assert bool(torch.isfinite(moved([90.0, 95.0], [1.0, 1.0], **settings)[1]).all())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.sampled_from(["token", "sample"]))
def test_the_weights_of_a_mini_batch_add_up_to_one(lengths, aggregation):
    weights = token_weights(lengths, aggregation)
    total = sum(weight * length for weight, length in zip(weights, lengths, strict=True))
    assert total == pytest.approx(1.0 if any(lengths) else 0.0)
