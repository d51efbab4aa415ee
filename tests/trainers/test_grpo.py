"""GRPO from episodes to weights: what must not matter, what is no number, and when it stops."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import local, same, settings, weights

from palaestra import TrainingHalted
from palaestra.trainers import grpo
from palaestra.trainers.learn.learner import Learner


def trained(arena, recipe="grpo-tcr", **changes):
    pupil = local()
    learner = Learner(pupil.agent, pupil.model, settings(recipe, **changes))
    curve = [dict(p.metrics) for p in grpo.train_learner(learner, arena)]
    for metrics in curve:
        for name in ("time/play", "time/learn", "step_time"):
            assert metrics.pop(name) > 0
    return curve, weights(pupil.model)


def test_the_same_seed_gives_the_same_curve_and_the_same_weights_bit_for_bit(two_hop):
    curve, after = trained(two_hop, steps=3)
    again, after_again = trained(two_hop, steps=3)
    assert curve == again
    assert same(after, after_again)
    assert curve[0]["optimizer_steps"] > 0, "nothing was learned, so nothing was shown"
    assert not same(weights(local().model), after)
    assert curve != trained(two_hop, steps=3, seed=1)[0]
    np.testing.assert_allclose([m["learning_rate"] for m in curve], [1e-3, 1e-3 * 0.525, 1e-3 * 0.05])


def test_a_learning_rate_of_zero_leaves_the_weights_bit_for_bit(two_hop):
    curve, after = trained(two_hop, learning_rate=0.0)
    assert curve[0]["grad_norm"] > 0
    assert same(weights(local().model), after)


def test_slots_and_micro_batches_change_speed_alone(two_hop):
    curve, _ = trained(two_hop, steps=1)
    pupil = local(slots=5)
    (other,) = grpo.train_learner(Learner(pupil.agent, pupil.model, settings(steps=1, micro_batch_tokens=1)), two_hop)
    for name, value in curve[0].items():
        if name != "num_tokens/shared_ratio":
            assert other.metrics[name] == pytest.approx(value, rel=1e-4, abs=2e-5), name


@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_the_engine_scores_like_the_trainer_at_any_temperature(two_hop, temperature):
    curve, _ = trained(two_hop, temperature=temperature)
    assert all(metrics["sampling/sampling_logp_difference/max"] < 2e-5 for metrics in curve)


def parted(spoil, **changes):
    """A learner whose model is not the one that its engine plays with."""
    pupil = local()
    twin = copy.deepcopy(pupil.model)
    with torch.no_grad():
        spoil(twin.model)
    return Learner(pupil.agent, twin, settings(**changes))


def test_an_engine_with_other_weights_stops_the_run_and_one_that_misses_an_update_too(two_hop):
    learner = parted(lambda model: model.layers[0].mlp.up_proj.weight.add_(0.02))
    before, engine = weights(learner.model), learner.agent.engine
    engine.update_weights = lambda tensors, version: None
    with pytest.raises(TrainingHalted, match="do not run the same weights"):
        list(grpo.train_learner(learner, two_hop))
    assert same(weights(learner.model), before)
    learner = parted(lambda model: None, learning_rate=0.02, steps=3)
    engine = learner.agent.engine
    engine.update_weights = lambda tensors, version: setattr(engine, "version", version)
    steps = grpo.train_learner(learner, two_hop)
    next(steps)
    with pytest.raises(TrainingHalted, match="do not run the same weights"):
        list(steps)


def test_weights_that_are_not_numbers_stop_the_run(two_hop):
    with pytest.raises(TrainingHalted):
        list(grpo.train_learner(parted(lambda model: model.norm.weight.fill_(math.nan)), two_hop))


def test_what_the_trainer_said_is_kept_beside_each_episode_that_it_learned_from(two_hop):
    pupil = local()
    (progress,) = grpo.train_learner(Learner(pupil.agent, pupil.model, settings(steps=1)), two_hop)
    assert len(progress.rollouts) == 16
    learned = 0
    for episode, (lesson,) in progress.rollouts:
        assert episode.start.env == "palaestra/TwoHop-v0"
        assert lesson.step == 1
        assert (lesson.advantage != 0) == bool(lesson.trainer_logprobs)
        learned += bool(lesson.trainer_logprobs)
        for row, said in zip(episode.rows, lesson.trainer_logprobs, strict=bool(lesson.trainer_logprobs)):
            gap = np.abs(said - row.logprobs)
            assert said.shape == row.logprobs.shape
            assert (said[~row.sampled] == 0).all()
            assert gap.max() < 2e-5 or lesson.updates > 0
    assert learned


def test_each_step_is_played_with_the_weights_of_the_last(two_hop):
    pupil, seen = local(), []
    publish = pupil.agent.engine.update_weights

    def watched(tensors, version):
        tensors = list(tensors)
        seen.append((version, {name: tensor.detach().clone() for name, tensor in tensors}))
        publish(tensors, version)

    pupil.agent.engine.update_weights = watched
    list(grpo.train_learner(Learner(pupil.agent, pupil.model, settings(steps=3)), two_hop))
    assert [version for version, _ in seen] == [0, 1, 2, 3]
    assert same(weights(pupil.model), seen[-1][1])
    assert not same(weights(pupil.model), seen[0][1])


def test_a_recipe_with_kl_starts_at_its_reference_and_leaves_it(two_hop):
    curve, _ = trained(two_hop, "grpo-t", beta=0.1, learning_rate=5e-3, steps=1, num_mini_batches=1)
    assert curve[0]["kl"] == pytest.approx(0, abs=1e-8)
    curve, _ = trained(two_hop, "grpo-t", beta=0.1, learning_rate=5e-3, steps=2)
    assert curve[1]["kl"] > 1e-6


# Rewards that are no numbers.


class Liar:
    """An arena that reports something else of the episodes of these seeds."""

    def __init__(self, arena, seeds, **lies):
        self._arena, self._seeds, self._lies = arena, seeds, lies

    def __getattr__(self, name):
        return getattr(self._arena, name)

    def recv(self, *arguments):
        events = self._arena.recv(*arguments)
        lying = [event.ending is not None and event.start.seed in self._seeds for event in events]
        return [replace(event, **self._lies) if lies else event for event, lies in zip(events, lying, strict=True)]


LIES = {
    "reward": ({"reward": math.nan}, "its reward is nan"),
    "part": ({"parts": {"success": 0.0, "speed": math.inf}}, r"its reward is 0.0, its parts .*'speed': inf"),
    "term": ({"reward": 1.7e308}, "its term outcome is inf"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_reward_that_is_no_number_drops_its_episode_and_too_many_stop_the_run(two_hop, lie):
    lies, said = LIES[lie]
    pupil = local()
    learner = Learner(pupil.agent, pupil.model, settings(steps=2, max_broken_share=0.1))
    steps = grpo.train_learner(learner, Liar(two_hop, {5, 16, 17}, **lies))
    progress = next(steps)
    assert progress.metrics["episodes/broken"] == 1
    assert [(episode.start.seed, len(lessons)) for episode, lessons in progress.rollouts if len(lessons) != 1] == [
        (5, 0)
    ]
    assert all(math.isfinite(value) for value in progress.metrics.values())
    assert all(math.isfinite(lesson.advantage) for _, lessons in progress.rollouts for lesson in lessons)
    before = weights(pupil.model)
    with pytest.raises(TrainingHalted, match=rf"2 of 16 episodes .*max_broken_share=0.1: 2 x {said}"):
        next(steps)
    assert (learner.step, learner.torn) == (1, False)
    assert same(weights(pupil.model), before)


# Gradients that are no numbers.


def poisoned(learner, steps):
    """Its gradients are no numbers in these steps, though its losses and weights are."""
    poison = math.nan
    learner.model.model.norm.weight.register_hook(lambda grad: grad * poison if learner.step in steps else grad)
    return learner


def test_a_gradient_that_is_no_number_is_skipped_and_the_run_goes_on(two_hop):
    pupil = local()
    seen = []
    for progress in grpo.train_learner(poisoned(Learner(pupil.agent, pupil.model, settings(steps=3)), {1}), two_hop):
        metrics = progress.metrics
        seen.append((metrics["optimizer_steps"], metrics["skipped_steps"], progress.note, weights(pupil.model)))
        assert math.isfinite(metrics["loss"])
        assert ("grad_norm" in metrics) is bool(metrics["optimizer_steps"]), "of a step that was skipped there is none"
    assert [(one[0] > 0, one[1] > 0) for one in seen] == [(True, False), (False, True), (True, False)]
    assert ["optimizer steps skipped, for their gradients" in one[2] for one in seen] == [False, True, False]
    assert same(weights(pupil.model), seen[2][3])
    assert same(seen[0][3], seen[1][3])
    assert not same(weights(pupil.model), seen[1][3])


def test_f49_of_each_task_remax_plays_one_greedy_episode_beside_the_others_and_learns_from_these_alone(two_hop):
    pupil = local()
    asked, submit = set(), pupil.agent.engine.submit
    pupil.agent.engine.submit = lambda request: (
        asked.add((request.start.greedy, request.temperature)) or submit(request)
    )
    config = settings("remax", steps=1, temperature=0.9, overlong_share=1.0)
    (step,) = grpo.train_learner(Learner(pupil.agent, pupil.model, config), two_hop)
    assert asked == {(True, 0.0), (False, 0.9)}
    groups = {}
    for episode, lessons in step.rollouts:
        groups.setdefault(episode.start.group, []).append((episode, lessons))
    assert len(groups) == config.play.num_prompts and step.metrics["grad_norm"] > 0
    assert len({episode.start.seed for episode, _ in step.rollouts}) == len(step.rollouts)
    for members in groups.values():
        ((greedy, none),) = [pair for pair in members if pair[0].start.greedy]
        assert none == () and len(members) == config.play.num_generations + 1
        baseline = sum(config.recipe.shaping(greedy).values())
        for episode, lessons in members:
            expected = sum(config.recipe.shaping(episode).values()) - baseline
            assert episode.start.greedy or lessons[0].advantage == pytest.approx(expected)
