"""The KL to a reference, estimated in three ways."""

import torch

from palaestra.trainers.losses.kl import ESTIMATORS, KL, KL_ESTIMATORS, k1, k2, k3


def test_it_is_zero_where_nothing_has_moved():
    assert k3(torch.tensor([-1.0, -7.0]), torch.tensor([-1.0, -7.0])).tolist() == [0, 0]


def test_its_values():
    # d = logprob - reference: exp(-d) + d - 1
    found = k3(torch.tensor([-1.0, -1.0]), torch.tensor([-1.5, -0.5]))
    torch.testing.assert_close(found, torch.tensor([0.1065307, 0.1487213]))


def test_its_slope_pulls_towards_the_reference():
    logprob = torch.tensor([-1.0, -1.0], requires_grad=True)
    k3(logprob, torch.tensor([-2.0, -0.5])).sum().backward()
    assert logprob.grad[0] > 0
    assert logprob.grad[1] < 0


def test_k1_and_k2_by_hand():
    logprob, reference = torch.tensor([-1.0, -1.0]), torch.tensor([-1.5, -0.5])
    torch.testing.assert_close(k1(logprob, reference), torch.tensor([0.5, -0.5]))
    torch.testing.assert_close(k2(logprob, reference), torch.tensor([0.125, 0.125]))


def expected_gradient(estimator):
    """The gradient that a loss of this estimator has on average over what the policy samples."""
    reference = torch.tensor([0.4, 0.4, 0.2]).log()
    logits = torch.tensor([0.9, 0.1, -0.4], requires_grad=True)
    logprobs = torch.log_softmax(logits, 0)
    (logprobs.exp().detach() * estimator(logprobs, reference)).sum().backward()
    return logits.grad


def kl_gradient():
    reference = torch.tensor([0.4, 0.4, 0.2]).log()
    logits = torch.tensor([0.9, 0.1, -0.4], requires_grad=True)
    logprobs = torch.log_softmax(logits, 0)
    (logprobs.exp() * (logprobs - reference)).sum().backward()
    return logits.grad


def test_as_a_loss_k1_does_not_pull_and_k2_pulls_as_the_kl_itself():
    torch.testing.assert_close(expected_gradient(k1), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(expected_gradient(k2), kl_gradient(), atol=1e-6, rtol=1e-5)
    assert float(expected_gradient(k3) @ kl_gradient()) > 0


def test_every_estimator_that_a_recipe_may_name_exists():
    assert set(KL_ESTIMATORS) == set(ESTIMATORS)
    for name, estimator in ESTIMATORS.items():
        pair = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -0.5])
        assert torch.equal(KL(1.0, name)(*pair), estimator(*pair))
