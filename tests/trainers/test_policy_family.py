"""The policy losses beside the clipped one, against values worked by hand and closed forms."""

import math

import pytest
import torch

from palaestra.trainers.losses.aggregation import token_weights
from palaestra.trainers.losses.covariance import ClipCov, KLCov, covariances
from palaestra.trainers.losses.policy import CISPO, GMPO, PolicyGradient


def moved(loss, log_ratios, advantages, rows=None, old=None):
    """The losses of tokens that moved by these log ratios, each one's gradient by its log-prob, and the result."""
    old_S = torch.linspace(-3, -1, len(log_ratios)) if old is None else torch.tensor(old)
    new_S = (old_S + torch.tensor(log_ratios)).requires_grad_()
    result = loss(new_S, old_S, torch.tensor(advantages), torch.tensor(rows or [0] * len(log_ratios)))
    (slope_S,) = torch.autograd.grad(result.loss_S.sum(), new_S, retain_graph=True)
    return result.loss_S.detach(), slope_S, result


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


def test_the_four_aggregations_on_a_sequence_of_one_and_one_of_nine():
    assert token_weights([1, 9], "token") == [0.1, 0.1]
    assert token_weights([1, 9], "sample") == pytest.approx([1 / 2, 1 / 18])
    assert token_weights([1, 9], "sum") == [0.5, 0.5]
    assert token_weights([1, 9, 0], "constant", longest=50) == [0.01, 0.01, 0.01]
