"""The clipped policy loss, against values worked by hand."""

import families
import numpy as np
import pytest
import torch

from palaestra.trainers.batch import pack_rows
from palaestra.trainers.losses.policy import policy_loss

TCR = {"epsilon": 0.2, "epsilon_high": 0.28, "dual_clip": 10.0}


def one(ratio, advantage, **changes):
    """Loss and its gradient by the log-prob, for one sampled token."""
    batch = pack_rows([families.token_row(1, [1])], [advantage])
    new = (batch.sampled_logprobs_N + batch.sampled_N * np.log(ratio)).requires_grad_()
    result = policy_loss(new, batch, denominator=1, **{**TCR, **changes})
    (slope,) = torch.autograd.grad(result.loss, new)
    return float(result.loss.detach()), float(slope[1]), result


@pytest.mark.parametrize(
    ("ratio", "advantage", "epsilon_high", "loss", "slope"),
    [
        (1.25, 1.0, 0.28, -1.25, -1.25),
        (1.25, 1.0, 0.20, -1.20, 0.0),
        (1.30, 2.0, 0.28, -2.56, 0.0),
        (0.50, 1.0, 0.28, -0.50, -0.50),
        (0.70, -1.0, 0.28, 0.80, 0.0),
        (0.90, -1.0, 0.28, 0.90, 0.90),
        (1.50, -1.0, 0.28, 1.50, 1.50),
        (1.00, 1.5, 0.28, -1.50, -1.50),
    ],
)
def test_the_clip_has_two_sides(ratio, advantage, epsilon_high, loss, slope):
    found, found_slope, _ = one(ratio, advantage, epsilon_high=epsilon_high)
    assert found == pytest.approx(loss, rel=1e-5)
    assert found_slope == pytest.approx(slope, rel=1e-5)


def test_the_dual_clip_bounds_what_a_bad_token_costs():
    loss, slope, _ = one(50.0, -1.5)
    assert loss == pytest.approx(15.0)
    assert slope == 0
    loss, slope, _ = one(50.0, -1.5, dual_clip=None)
    assert loss == pytest.approx(75.0, rel=1e-5)
    assert slope == pytest.approx(75.0, rel=1e-5)
    assert one(50.0, 1.5)[0] == pytest.approx(-1.28 * 1.5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "low", "high"), [(0.7, -1, 1, 0), (0.7, 1, 0, 0), (1.4, 1, 0, 1), (1.4, -1, 0, 0)]
)
def test_what_is_clipped_is_counted_on_the_side_where_it_bites(ratio, advantage, low, high):
    result = one(ratio, advantage)[2]
    assert (result.clipped_low, result.clipped_high, result.tokens) == (low, high, 1)


def test_every_token_of_the_batch_weighs_the_same():
    """Rows of one and of nine tokens: each token counts a tenth."""
    batch = pack_rows([families.token_row(3, [1]), families.token_row(2, [4, 5])], [1.0, 1.0])
    new = batch.sampled_logprobs_N.clone().requires_grad_()
    policy_loss(new, batch, denominator=10, **TCR).loss.backward()
    expected = torch.where(batch.sampled_N, -0.1, 0.0)
    torch.testing.assert_close(new.grad, expected)


def test_what_is_not_sampled_has_no_part_in_the_loss():
    batch = pack_rows([families.token_row(3, [2, 3])], [0.7])
    noise = torch.where(batch.sampled_N, 0.0, torch.linspace(-50, 50, len(batch.ids_N)))
    plain = policy_loss(batch.sampled_logprobs_N, batch, denominator=5, **TCR).loss
    assert policy_loss(batch.sampled_logprobs_N + noise, batch, denominator=5, **TCR).loss == plain
