"""Rows F43 to F48: the value of a task, the refill of a batch by it, and dynamic sampling."""

from collections import Counter
from dataclasses import replace

import numpy as np
import parrot
import pytest
from batches import local, same, settings, weights
from drawing import mixed, of_rewards, opened, play

import palaestra
from palaestra.trainers import find_recipe, grpo, tiny_config
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.reward.reward_model import ReasoningReward
from palaestra.trainers.rollout.make_sampler import make_sampler
from palaestra.trainers.samplers.dapo import Dynamic
from palaestra.trainers.samplers.vspo import VSPO
from palaestra.trainers.validation import changed


def by_group(batch):
    """The group of the run that each group of the batch has its episodes from, and its weight."""
    found = {}
    for sample in batch.samples:
        found[sample.group] = batch.rollouts[sample.place].episode.start.group, sample.weight
    return list(found.values())


@pytest.mark.parametrize(
    ("solved", "value"), [((1, 1, 0, 0, 0), 0.2939), ((1, 1, 1, 1, 0), 0.08), ((1, 0, 0, 0, 0), 0.32)]
)
def test_f43_the_value_of_a_task(solved, value):
    assert VSPO().value(np.array(solved, float)) == pytest.approx(value, abs=1e-4)
    assert VSPO().value(np.zeros(5)) == VSPO().value(np.ones(5)) == VSPO().value(np.full(8, 0.7)) == 0


def test_f43_it_is_largest_at_a_quarter_and_for_the_variance_at_a_third():
    shares = np.arange(1, 1200) / 1200

    def best(kind):
        return shares[np.argmax([(1 - p) * (p * (1 - p)) ** (0.5 if kind == "deviation" else 1) for p in shares])]

    assert best("deviation") == pytest.approx(0.25, abs=1e-3)
    assert best("variance") == pytest.approx(1 / 3, abs=1e-3)
    outcomes = np.repeat([1.0, 0.0], [3, 9])
    assert VSPO(value_spread="variance").value(outcomes) == pytest.approx(0.75 * 0.25 * 0.75)


@pytest.mark.parametrize("recipe", ["vspo", "vspo-prs", "vspo with a judge"])
def test_f43_a_training_reward_is_scaled_from_the_range_that_its_terms_declare(recipe):
    name, _, judged = recipe.partition(" with ")
    made = find_recipe(name)
    made = replace(made, judge=ReasoningReward(score_weight=0.4)) if judged else made
    low, high = {"vspo": (-1.0, 1.0), "vspo-prs": (0.0, 1.0)}.get(recipe, (-1.0, 1.4))
    assert made.reward_range == (low, high)
    batch = of_rewards([(high, high, low, low, low)], made.reward_range)
    assert batch.figures["sampler/mean_value"] == pytest.approx(0.2939, abs=1e-4)
    config = changed(tiny_config(parrot.ENV, made), {"num_prompts": 2})
    arena = palaestra.arena(parrot.ENV, 2)
    assert make_sampler(config, arena).groups.reward_range == (low, high)
    arena.close()


def test_f44_no_dead_group_is_left_and_the_batch_keeps_its_size():
    source = opened(VSPO(), prompts=9)
    for _ in range(5):
        batch, begun = play(source, mixed)
        assert len(begun) == 36, "nothing is played again"
        assert len(batch.samples) == 36
        assert {group % 3 for group, _ in by_group(batch)} == {2}
        assert batch.figures["sampler/dead_share"] == pytest.approx(2 / 3)


def test_f44_groups_are_drawn_in_proportion_to_their_value_and_no_oftener_than_the_cap():
    """Two live groups, of 1 and 3 of 4 right: values .325 and .108."""

    def two_alive(start):
        group = start.group % 50
        return group < 2 and start.seed % 4 < (1, 3)[group]

    free, capped = opened(VSPO(max_copies=None), prompts=50), opened(VSPO(), prompts=50)
    counts = Counter(group % 50 for _ in range(8) for group, weight in by_group(play(free, two_alive)[0]) if weight < 1)
    assert sum(counts.values()) == 8 * 48
    expected = 8 * 48 * np.array([0.75, 0.25])
    assert sum((np.array([counts[0], counts[1]]) - expected) ** 2 / expected) < 6.6  # 1 % of chance
    batch, _ = play(capped, two_alive)
    assert Counter(group for group, _ in by_group(batch)) == {0: 5, 1: 5}, "the batch is smaller then"


@pytest.mark.parametrize(
    ("damping", "counted"),
    [("geometric", [1, 0.5, 0.25, 0.125]), ("inverse-root", [0.5] * 4), ("none", [1] * 4)],
)
def test_f45_a_copy_counts_less(damping, counted):
    source = opened(VSPO(damping=damping, max_copies=3), prompts=4)
    batch, _ = play(source, lambda start: start.group % 4 == 0 and start.seed % 2)
    assert [weight for _, weight in by_group(batch)] == counted
    assert damping != "geometric" or sum(counted) < 2
    alone, _ = play(opened(VSPO(damping=damping)), lambda start: start.seed % 2)
    assert {weight for _, weight in by_group(alone)} == {1.0}


def test_f46_a_batch_whose_groups_are_all_dead_takes_no_step_and_is_counted(two_hop):
    pupil = local()
    before = weights(pupil.model)
    learner = Learner(pupil.agent, pupil.model, settings("vspo", steps=2, beta=0.0))
    for progress in grpo.train_learner(learner, two_hop):  # A random agent never succeeds.
        assert progress.metrics["optimizer_steps"] == 0
        assert progress.metrics["sampler/dead_share"] == 1
        assert all(np.isfinite(value) for value in progress.metrics.values())
        assert "nothing was learned" in progress.note
        assert progress.metrics["reward"] == -1
        assert progress.metrics["rewards/success/mean"] == 0, "of what was played, though nothing of it is kept"
    assert same(before, weights(pupil.model))


@pytest.mark.parametrize("refill", ["value", "random", "left-out", "none"])
@pytest.mark.parametrize("damping", ["geometric", "none"])
def test_f47_every_switch_of_the_ablation_runs_and_tells_its_copies(refill, damping):
    batch, _ = play(opened(VSPO(refill=refill, damping=damping), prompts=9), mixed)
    size = {"none": 36, "left-out": 12}.get(refill, 36)
    assert len(batch.samples) == size
    if refill != "none":
        assert batch.figures["sampler/copies"] == (0 if refill == "left-out" else 6)


def test_f48_dynamic_sampling_gives_full_batches_without_a_group_that_ended_alike():
    source = opened(Dynamic())
    for _ in range(5):
        batch, begun = play(source, mixed)
        groups = {batch.rollouts[sample.place].episode.start.group for sample in batch.samples}
        assert len(groups) == 4
        assert {group % 3 for group in groups} == {2}
        assert len(batch.samples) == 16
        assert batch.figures["sampler/kept"] == 4
        assert len(batch.rollouts) == len(begun) == 4 * batch.figures["sampler/groups"]


def test_f48_a_pool_without_a_usable_task_ends_in_an_empty_batch_at_the_cap():
    source = opened(Dynamic(max_rounds=3))
    batch, begun = play(source, lambda start: False)
    assert batch.samples == ()
    assert len(begun) == 3 * 16
    assert play(source, mixed)[0].number == 1, "the run goes on"
