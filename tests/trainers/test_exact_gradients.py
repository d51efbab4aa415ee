"""Estimators against the exact gradient, on a problem that is small enough to add up every group that may be sampled.

A policy says two words, each one of three; the second is drawn from a distribution that depends on the first, and what
is paid depends on both. `J` is its expected pay. An estimator's expectation over all groups is compared with J's
gradient: equal, equal up to a factor, or with a bias that is shown to be there.
"""

from dataclasses import replace
from itertools import product

import families
import numpy as np
import pytest
import torch
from batches import batch_of

from palaestra.trainers.batch import BatchScores
from palaestra.trainers.losses.group_advantages import GreedyBaseline, GroupNormalized, LeaveOneOut, OptimalBaseline
from palaestra.trainers.losses.token_advantages import GAE, Whitened, to_come

WORDS = 3
PAID = np.array([[0.0, 1.0, 0.3], [0.5, 0.0, 0.0], [1.0, 0.2, 0.9]])
"""By the first word and the second: between 0 and 1, as an environment's rewards are."""
FIRST, SECOND = np.array([0.2, -0.5, 0.4]), np.array([[0.3, 0.0, -0.2], [1.0, -1.0, 0.0], [0.0, 0.6, -0.6]])
SAYINGS = list(product(range(WORDS), repeat=2))


def logprobs(parameters):
    """Log-prob of each word of each saying, as (9, 2)."""
    first, second = parameters[:WORDS].log_softmax(0), parameters[WORDS:].reshape(WORDS, WORDS).log_softmax(1)
    return torch.stack([torch.stack([first[a], second[a, b]]) for a, b in SAYINGS])


PARAMETERS = torch.tensor(np.concatenate([FIRST, SECOND.ravel()]), requires_grad=True)
LOGPROBS = logprobs(PARAMETERS)
CHANCE = LOGPROBS.detach().sum(1).exp().numpy()
REWARDS = 2 * PAID.ravel() - 1  # As a batch has it: an outcome from -1 to 1.


def slopes():
    """Gradient of each word's log-prob by all parameters, as (9, 2, 12)."""
    flat = [torch.autograd.grad(one, PARAMETERS, retain_graph=True)[0].numpy() for one in LOGPROBS.reshape(-1)]
    return np.array(flat).reshape(len(SAYINGS), 2, -1)


SLOPES = slopes()
EXACT = (CHANCE * REWARDS) @ SLOPES.sum(1)


def sampled(members):
    """A batch of one group of these sayings."""
    rows = [families.token_row(3, [2], seed=number) for number in range(len(members))]
    for row, member in zip(rows, members, strict=True):
        row.logprobs[row.sampled] = LOGPROBS.detach().numpy()[member]
    made = [
        families.an_episode(row, reward=float(PAID.ravel()[member])) for row, member in zip(rows, members, strict=True)
    ]
    return batch_of(made)


def expectation(advantage, scores=lambda members: BatchScores(), size=2, sampled=sampled):
    """What an estimator's gradient is on average over all groups of that size."""
    total = np.zeros(SLOPES.shape[-1])
    for members in product(range(len(SAYINGS)), repeat=size):
        values = advantage(sampled(members), scores(members))
        by_word = [
            np.broadcast_to(np.asarray(value, float), 2) @ SLOPES[m] for value, m in zip(values, members, strict=True)
        ]
        total += CHANCE[list(members)].prod() * np.mean(by_word, axis=0)
    return total


def apart(found, expected=EXACT):
    """How far apart two gradients are, by the length of the second."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def test_f49_leave_one_out_is_the_exact_gradient():
    assert apart(expectation(LeaveOneOut())) < 1e-6


def beside_a_greedy_one(members):
    """The same, with an episode of the likeliest saying that is no sample."""
    batch = sampled(members)
    greedy = sampled([int(CHANCE.argmax())]).rollouts[0]
    greedy = replace(greedy, episode=replace(greedy.episode, start=replace(greedy.episode.start, greedy=True)))
    return replace(batch, rollouts=(*batch.rollouts, greedy))


@pytest.mark.parametrize("size", [1, 2])
def test_f49_remax_is_the_exact_gradient_and_is_paid_less_what_the_likeliest_saying_is(size):
    assert apart(expectation(GreedyBaseline(), size=size, sampled=beside_a_greedy_one)) < 1e-6
    paid = GreedyBaseline()(beside_a_greedy_one([0, 4]), BatchScores())
    assert paid == pytest.approx([REWARDS[0] - REWARDS[CHANCE.argmax()], REWARDS[4] - REWARDS[CHANCE.argmax()]])
    assert GreedyBaseline()(sampled([0, 4]), BatchScores()) == [0.0, 0.0], "its greedy episode is BROKEN"


@pytest.mark.parametrize("size", [2, 3])
def test_f49_dr_grpo_is_the_exact_gradient_times_one_less_than_the_group_by_the_group(size):
    advantage = GroupNormalized(scale_rewards="none")
    assert apart(expectation(advantage, size=size), (size - 1) / size * EXACT) < 1e-6
    same_length = expectation(OptimalBaseline(), size=size)
    assert apart(same_length, (size - 1) / size * EXACT) < 1e-6


def exact_values(members):
    """What is still to come, on average, before each word: an exact critic."""
    by_first = REWARDS.reshape(WORDS, WORDS)
    chance = CHANCE.reshape(WORDS, WORDS)
    after = (by_first * chance / chance.sum(1, keepdims=True)).sum(1)
    return BatchScores(values=tuple(np.array([CHANCE @ REWARDS, after[SAYINGS[m][0]]], np.float32) for m in members))


@pytest.mark.parametrize("lam", [1.0, 0.95, 0.0])
def test_f49_gae_with_an_exact_critic_is_the_exact_gradient(lam):
    """At any lambda: what an exact critic adds to a return has the mean 0."""
    assert apart(expectation(GAE(lam=lam, whiten_advantages=False), exact_values, size=1)) < 1e-6


def test_f49_gae_at_lambda_1_is_the_exact_gradient_whatever_the_critic_thinks():
    def wrong(members):
        first_alone = [np.array([0.7, -0.3 + SAYINGS[m][0]], np.float32) for m in members]
        return BatchScores(values=tuple(first_alone))

    assert apart(expectation(GAE(lam=1.0, whiten_advantages=False), wrong, size=1)) < 1e-6
    assert apart(expectation(GAE(lam=0.0, whiten_advantages=False), wrong, size=1)) > 0.1


def test_f49_what_is_to_come_is_reinforce_and_the_exact_gradient():
    assert apart(expectation(to_come, size=1)) < 1e-6


def test_f49_dividing_by_a_deviation_has_a_bias_that_a_larger_group_does_not_undo():
    """GRPO's and REINFORCE++'s: the direction is near the exact one, and not it."""

    def angle(found):
        return np.degrees(np.arccos(found @ EXACT / np.linalg.norm(found) / np.linalg.norm(EXACT)))

    for advantage in (GroupNormalized(), Whitened(group_baseline=True)):
        assert 0.5 < angle(expectation(advantage, size=3)) < 30


def test_f51_a_kl_that_is_charged_to_the_reward_has_the_gradient_of_the_expected_reward_less_the_kl():
    """With k1 by `LeaveOneOut`: reward - beta * KL, exactly."""
    beta, reference = 0.3, np.log(np.full((9, 2), 1 / 3))
    moved = LOGPROBS.detach().numpy() - reference

    def scores(members):
        return BatchScores(costs=tuple(beta * moved[m] for m in members))

    loss = (LOGPROBS.sum(1).exp() * (torch.tensor(REWARDS) - beta * (LOGPROBS - torch.tensor(reference)).sum(1))).sum()
    (expected,) = torch.autograd.grad(loss, PARAMETERS, retain_graph=True)
    assert apart(expectation(LeaveOneOut(), scores), expected.numpy()) < 1e-6
    assert apart(expectation(to_come, scores, size=1), expected.numpy()) < 1e-6
