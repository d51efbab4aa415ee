"""Rows F49 to F56, but for F55 (test_learning.py): what all three papers stand on."""

import math
from dataclasses import replace

import going
import gymnasium
import numpy as np
import parrot
import pytest
import torch
from batches import same
from families import random_agent
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from test_token_advantages import spoken

import palaestra
from palaestra.trainers import find_recipe, grpo
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.losses.group_advantages import OptimalBaseline
from palaestra.trainers.losses.importance_correction import Masked, Truncated
from palaestra.trainers.losses.kl import k1, k2, k3
from palaestra.trainers.losses.token_advantages import GAE, Whitened


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dr-grpo", [1.5, -0.5, -0.5, -0.5]),
        ("rloo", [2.0, -2 / 3, -2 / 3, -2 / 3]),
        ("opo", [1.6, -0.4, -0.4, -0.4]),
    ],
)
def test_f49_group_advantages_in_closed_form(name, expected):
    """Outcomes of 1, -1, -1, -1, of 1, 1, 1 and 2 tokens; leave-one-out is G/(G-1) of what is above the mean."""
    batch = spoken([[1], [1], [1], [2]], [1.0, 0.0, 0.0, 0.0])
    advantage = OptimalBaseline() if name == "opo" else find_recipe(name).advantage
    np.testing.assert_allclose(advantage(batch, BatchScores()), expected, rtol=1e-5)


def test_f49_gae_by_hand():
    """Reward 1 after three tokens; values .5 .4 .8; gamma .9, lambda .5."""
    batch = spoken([[1, 2]], [1.0])
    scores = BatchScores(values=(np.array([0.5, 0.4, 0.8], np.float32),))
    last = 1 - 0.8
    middle = 0.9 * 0.8 - 0.4 + 0.45 * last
    first = 0.9 * 0.4 - 0.5 + 0.45 * middle
    (found,) = GAE(gamma=0.9, lam=0.5).estimates(batch, scores)
    np.testing.assert_allclose(found, [first, middle, last], rtol=1e-6)


def test_f49_reinforce_plus_plus_whitens_what_is_to_come_over_all_tokens():
    batch = spoken([[2], [1, 1], [3]], [1.0, 0.0, 1.0])
    costs = (np.array([0.5, 0.1]), np.zeros(2), np.array([0.0, 0.0, 0.2]))
    found = np.concatenate(Whitened()(batch, BatchScores(costs=costs)))
    raw = np.array([0.4, 0.9, -1.0, -1.0, 0.8, 0.8, 0.8])
    np.testing.assert_allclose(found, (raw - raw.mean()) / raw.std(ddof=1), rtol=1e-6)


def test_f49_its_baseline_form_takes_the_groups_mean_first():
    batch = spoken([[2], [1], [3], [1]], [1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1])
    found = np.concatenate(Whitened(group_baseline=True)(batch, BatchScores()))
    raw = np.array([1, 1, -1, 0, 0, 0, 0.0])  # The second group's rewards are equal: they teach nothing ...
    np.testing.assert_allclose(found, (raw - raw.mean()) / raw.std(ddof=1), rtol=1e-6)


@given(st.floats(-100, 0), st.floats(-100, 0))
def test_f51_it_is_never_negative_and_bounded(logprob, reference):
    value = float(k3(torch.tensor(logprob), torch.tensor(reference)))
    assert -1e-6 <= value <= 10


def test_f51_its_mean_over_the_policy_is_the_kl():
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    exact = float((policy * (policy / reference).log()).sum())
    for estimator in (k1, k3):
        assert float((policy * estimator(policy.log(), reference.log())).sum()) == pytest.approx(exact, rel=1e-5)
    assert float((policy * k2(policy.log(), reference.log())).sum()) == pytest.approx(exact, rel=0.05)


RATIOS = np.array([0.4, 1.0, 2.0, 3.0, 5.0, 1.5])
ROWS = np.array([0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (Truncated(cap=2.0), [0.4, 1, 2, 2, 2, 1.5]),
        (Truncated(cap=1.0, correction_level="sequence"), [0.8, 0.8, 0.8, 1, 1, 1]),
        (Masked(0.5, 4.0), [0, 1, 2, 3, 0, 1.5]),
        (Masked(0.5, 4.0, "sequence"), [0.8, 0.8, 0.8, 0, 0, 1.5]),
    ],
    ids=str,
)
def test_f52_weights_are_those_of_worked_numbers(correction, expected):
    np.testing.assert_allclose(correction(np.log(RATIOS), ROWS), expected, rtol=1e-12)
    assert (correction(np.log(RATIOS), ROWS) <= getattr(correction, "cap", math.inf)).all()
    assert np.isfinite(correction(np.array([-1e4, 1e4]), np.array([0, 1]))).all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(1.0, 2.0, 1.0), (1.25, 1.0, 1.25), (3.0, 1.0, 1.28), (3.0, -1.0, 1.28), (0.5, 1.0, 0.8), (0.5, -1.0, 0.8)],
)
def test_f50_a_clipped_token_of_cispo_still_learns_with_the_clipped_weight(ratio, advantage, weight):
    new_S = torch.tensor([math.log(ratio) - 2.0], requires_grad=True)
    loss = replace(find_recipe("cispo").loss, epsilon=0.2, epsilon_high=0.28)
    loss(new_S, torch.tensor([-2.0]), torch.tensor([advantage]), torch.tensor([0])).loss_S.sum().backward()
    assert float(new_S.grad) == pytest.approx(-weight * advantage, rel=1e-5)


def test_f53_the_log_probs_of_who_sampled_of_before_the_steps_and_of_now_are_kept_apart():
    """The engine is made wrong by a little: what it said stays in the rows, the learner's own is in the lessons, and
    each gap has a figure of its own.
    """
    learner = parrot.learner(correction="truncated", max_logprob_gap=9.0, num_mini_batches=1, num_iterations=2)
    poll = learner.agent.engine.poll
    learner.agent.engine.poll = lambda timeout=0.0: [
        replace(one, logprobs=[value - 0.25 for value in one.logprobs]) for one in poll(timeout)
    ]
    arena = palaestra.arena(parrot.ENV, 12)
    step = next(iter(grpo.train_learner(learner, arena)))
    arena.close()
    assert step.metrics["correction/gap_mean"] == pytest.approx(0.25, abs=1e-3)
    assert step.metrics["clip_ratio/region_mean"] >= 0 and step.metrics["optimizer_steps"] == 2
    for episode, lessons in step.rollouts:
        for row, own in zip(episode.rows, lessons[0].trainer_logprobs, strict=True):
            np.testing.assert_allclose(row.logprobs[row.sampled] + 0.25, own[row.sampled], atol=1e-3)


@pytest.mark.parametrize("name", ["TwoHop", "CodeMath", "SearchQA", "LongQA"])
def test_f54_an_environment_passes_gymnasiums_own_check(name):
    check_env(gymnasium.make(f"palaestra/{name}-v0").unwrapped)


def test_f56_a_run_that_stopped_goes_on_bit_by_bit_with_a_curriculum_too(tmp_path):
    model = random_agent(tmp_path / "model")
    config = going.run_of(model, "prs", eval_tasks=0, steps=2, curriculum=True, format_weight=0.0)
    going.on(tmp_path / "whole", config)
    going.on(tmp_path / "parts", config, steps=1)
    going.on(tmp_path / "parts")
    whole, parts = (going.told(tmp_path / name) for name in ("whole", "parts"))
    assert whole == parts
    ends = [going.state(going.step_folder(tmp_path / name, 2)) for name in ("whole", "parts")]
    assert same(*ends)
    moved = [line["rewards/stage_parsed/mean"] for line in whole[0]]
    assert moved[0] > moved[1]
