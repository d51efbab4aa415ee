"""The KL to a reference, estimated in three ways."""

import torch

from palaestra.trainers.losses.kl import ESTIMATORS, KL, KL_ESTIMATORS, k1, k2, k3


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
