"""k3 to a reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.losses.kl import k3


@given(st.floats(-100, 0), st.floats(-100, 0))
def test_it_is_never_negative_and_bounded(logprob, reference):
    value = float(k3(torch.tensor(logprob), torch.tensor(reference)))
    assert -1e-6 <= value <= 10


def test_it_is_zero_where_nothing_has_moved():
    assert k3(torch.tensor([-1.0, -7.0]), torch.tensor([-1.0, -7.0])).tolist() == [0, 0]


def test_its_values():
    # d = logprob - reference: exp(-d) + d - 1
    found = k3(torch.tensor([-1.0, -1.0]), torch.tensor([-1.5, -0.5]))
    torch.testing.assert_close(found, torch.tensor([0.1065307, 0.1487213]))


def test_its_mean_over_the_policy_is_the_kl():
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    exact = float((policy * (policy / reference).log()).sum())
    assert float((policy * k3(policy.log(), reference.log())).sum()) == pytest.approx(exact, rel=1e-5)


def test_its_slope_pulls_towards_the_reference():
    logprob = torch.tensor([-1.0, -1.0], requires_grad=True)
    k3(logprob, torch.tensor([-2.0, -0.5])).sum().backward()
    assert logprob.grad[0] > 0
    assert logprob.grad[1] < 0
