"""The policy losses, against values worked by hand and closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.losses.aggregation import token_weights
from palaestra.trainers.losses.covariance import ClipCov, KLCov, covariances
from palaestra.trainers.losses.policy import CISPO, GMPO, Clip, PolicyGradient

TCR = {"epsilon": 0.2, "epsilon_high": 0.28, "dual_clip": 10.0}
SEQUENCE = {"epsilon": 0.5, "epsilon_high": 0.5, "dual_clip": None, "importance_sampling_level": "sequence"}


def moved(loss, log_ratios, advantages, rows=None, old=None):
    """The losses of tokens that moved by these log ratios, each one's gradient by its log-prob, and the result."""
    old_S = torch.linspace(-3, -1, len(log_ratios)) if old is None else torch.tensor(old)
    new_S = (old_S + torch.tensor(log_ratios)).requires_grad_()
    result = loss(new_S, old_S, torch.tensor(advantages), torch.tensor(rows or [0] * len(log_ratios)))
    (slope_S,) = torch.autograd.grad(result.loss_S.sum(), new_S, retain_graph=True)
    return result.loss_S.detach(), slope_S, result


@pytest.mark.parametrize(
    ("ratio", "advantage", "low", "high"), [(0.7, -1.0, 1, 0), (0.7, 1.0, 0, 0), (1.4, 1.0, 0, 1), (1.4, -1.0, 0, 0)]
)
def test_what_is_clipped_is_counted_on_the_side_where_it_bites(ratio, advantage, low, high):
    result = moved(Clip(**TCR), [math.log(ratio)], [advantage])[2]
    assert (result.clipped_low, result.clipped_high) == (low, high)


@pytest.mark.parametrize(
    ("shift", "advantage", "clipped"),
    [(5e-4, 1.0, True), (3.9e-4, 1.0, False), (-4e-4, -1.0, True), (5e-4, -1.0, False)],
)
def test_a_sequence_is_clipped_whole(shift, advantage, clipped):
    """Single tokens far outside the clip do not matter; the mean of the row does."""
    narrow = {**SEQUENCE, "epsilon": 3e-4, "epsilon_high": 4e-4}
    _, slope_S, result = moved(Clip(**narrow), [shift + 0.05, shift - 0.05, shift], [advantage] * 3)
    assert bool((slope_S == 0).all()) is clipped
    assert result.clipped_low + result.clipped_high == 3 * clipped


def test_a_row_has_a_ratio_of_its_own():
    wide = {**SEQUENCE, "epsilon": 0.9, "epsilon_high": 9.0}
    loss_S, _, _ = moved(Clip(**wide), [0.2, 0.0, 0.3, 0.3, 0.0], [1.0] * 2 + [-1.0] * 3, [0, 0, 1, 1, 1])
    assert loss_S.tolist() == pytest.approx([-math.exp(0.1)] * 2 + [math.exp(0.2)] * 3, rel=1e-5)


@pytest.mark.parametrize("settings", [SEQUENCE, {**TCR, "dual_clip": None}], ids=["sequence", "token"])
def test_a_ratio_that_ran_away_has_a_finite_loss(settings):
    """exp(95) is no float32, and times a gradient of 0 it would be no number at all."""
    loss_S, slope_S, _ = moved(Clip(**settings), [90.0, 95.0], [-1.0, -1.0])
    assert loss_S.tolist() == pytest.approx([math.exp(10)] * 2, rel=1e-5)
    assert bool(torch.isfinite(slope_S).all())
    assert bool(torch.isfinite(moved(Clip(**settings), [90.0, 95.0], [1.0, 1.0])[1]).all())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.sampled_from(["token", "sample"]))
def test_the_weights_of_a_mini_batch_add_up_to_one(lengths, aggregation):
    weights = token_weights(lengths, aggregation)
    total = sum(weight * length for weight, length in zip(weights, lengths, strict=True))
    assert total == pytest.approx(1.0 if any(lengths) else 0.0)


def test_cispo_has_no_lower_bound_unless_one_is_named():
    _, slope_S, result = moved(CISPO(), [math.log(0.01), math.log(9.0)], [1.0, 1.0])
    torch.testing.assert_close(slope_S, torch.tensor([-0.01, -5.0]))
    assert (result.clipped_low, result.clipped_high) == (0, 1)


def test_gmpo_is_the_geometric_mean_of_clipped_ratios():
    """Two rows: the second's large ratio is clipped where the advantage drives it, and not on the other side."""
    log_ratios = [0.1, -0.3, 0.9, -0.9]
    loss_S, slope_S, result = moved(GMPO(), log_ratios, [1.0, 1.0, 2.0, 2.0], rows=[0, 0, 1, 1])
    first, second = math.exp((0.1 - 0.3) / 2), 2 * math.exp((0.4 - 0.9) / 2)
    torch.testing.assert_close(loss_S, -torch.tensor([first, first, second, second]))
    # The sum over a row of two has twice the gradient of its loss; a clipped token has none.
    torch.testing.assert_close(slope_S, -torch.tensor([first, first, 0.0, second]))
    assert (result.clipped_low, result.clipped_high) == (0, 1)
    below_S, slope_S, result = moved(GMPO(), log_ratios, [-1.0] * 4, rows=[0, 0, 1, 1])
    assert float(below_S[2]) == pytest.approx(math.exp((0.9 - 0.4) / 2))
    assert float(slope_S[3]) == 0
    assert (result.clipped_low, result.clipped_high) == (1, 0)


def test_the_plain_policy_gradient_looks_at_no_ratio():
    _, slope_S, _ = moved(PolicyGradient(), [3.0, -3.0], [1.5, -0.5])
    torch.testing.assert_close(slope_S, torch.tensor([-1.5, 0.5]))


def test_clip_cov_takes_out_at_most_its_share_of_the_tokens_between_its_bounds():
    advantages = [3.0] * 10 + [-1.0] * 30
    old = [-0.5] * 10 + [-2.0] * 30
    loss = ClipCov(clip_cov_ratio=0.1)
    covariance_S = covariances(torch.tensor(old), torch.tensor(advantages))
    inside_S = (covariance_S > 1.0) & (covariance_S < 5.0)
    assert inside_S.sum() == 10
    _, slope_S, result = moved(loss, [0.0] * 40, advantages, old=old)
    out_S = slope_S == 0
    assert (int(out_S.sum()), result.clipped_high) == (4, 4)
    assert bool(inside_S[out_S].all())
    _, again_S, _ = moved(loss, [0.0] * 40, advantages, old=old)
    torch.testing.assert_close(again_S, slope_S)


def test_kl_cov_holds_the_tokens_of_the_largest_covariance():
    advantages, old = [3.0, 1.0, -1.0, -3.0] * 5, [-0.1 * number for number in range(20)]
    held = KLCov(kl_cov_ratio=0.05, kl_cov_coef=0.7)
    _, slope_S, _ = moved(held, [0.2] * 20, advantages, old=old)
    plain_S = -math.exp(0.2) * torch.tensor(advantages)
    differs_S = (slope_S - plain_S).abs() > 1e-4
    largest = int(covariances(torch.tensor(old) + 0.2, torch.tensor(advantages)).argmax())
    assert differs_S.nonzero()[:, 0].tolist() == [largest]
    assert float((slope_S - plain_S)[largest]) == pytest.approx(0.7, rel=1e-4)


def test_the_other_aggregations_on_a_sequence_of_one_and_one_of_nine():
    assert token_weights([1, 9], "sum") == [0.5, 0.5]
    assert token_weights([1, 9, 0], "constant", longest=50) == [0.01, 0.01, 0.01]
