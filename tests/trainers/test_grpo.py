"""GRPO from episodes to weights: what is learned from, what must not matter, and when it stops."""

import copy
import math
from dataclasses import replace

import families
import numpy as np
import pytest
import torch
from batches import batch_of, spoken

from palaestra import TrainingHalted
from palaestra.agents import Agent
from palaestra.agents.local_model import serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers import grpo
from palaestra.trainers.batch import Sample
from palaestra.trainers.config import tiny_config
from palaestra.trainers.forward import token_logprobs
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.advantages import Group
from palaestra.trainers.losses.policy import Clip
from palaestra.trainers.packed import pack

TOKENIZER = families.TOKENIZERS["tiny"]
# A random agent never succeeds; it differs in length, and with so short a limit that is rewarded.
SMALL = {
    "steps": 2,
    "num_prompts": 4,
    "num_generations": 4,
    "num_mini_batches": 2,
    "slots": 16,
    "max_turn_tokens": 30,
    "max_completion_length": 10,
    "device": "cpu",
}


def settings(recipe="grpo-tcr", **changes):
    return tiny_config("palaestra/TwoHop-v0", recipe, **{**SMALL, **changes})


def local(slots=16):
    """A random agent with so many stops that its turns differ in length."""
    model = tiny_model(len(TOKENIZER), layers=2, seed=7)
    model.generation_config.eos_token_id = list(range(20, 250, 6))
    return serve(model, TOKENIZER, slots=slots)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def unchanged(model, before):
    return all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def trained(arena, recipe="grpo-tcr", **changes):
    pupil = local()
    learner = Learner(pupil.agent, pupil.model, settings(recipe, **changes))
    curve = [dict(p.metrics) for p in grpo.train(learner, arena)]
    for metrics in curve:
        for name in ("time/play", "time/learn", "step_time"):
            assert metrics.pop(name) > 0
    return curve, weights(pupil.model)


def test_the_same_seed_gives_the_same_curve_and_the_same_weights_bit_for_bit(two_hop):
    curve, after = trained(two_hop, steps=3)
    again, after_again = trained(two_hop, steps=3)
    assert curve == again
    assert all(torch.equal(after[name], after_again[name]) for name in after)
    assert curve[0]["optimizer_steps"] > 0, "nothing was learned, so nothing was shown"
    assert not unchanged(local().model, after)
    assert curve != trained(two_hop, steps=3, seed=1)[0]
    np.testing.assert_allclose([m["learning_rate"] for m in curve], [1e-3, 1e-3 * 0.525, 1e-3 * 0.05])


def test_a_learning_rate_of_zero_leaves_the_weights_bit_for_bit(two_hop):
    curve, after = trained(two_hop, learning_rate=0.0)
    assert curve[0]["grad_norm"] > 0
    assert unchanged(local().model, after)


def test_slots_and_micro_batches_change_speed_alone(two_hop):
    curve, _ = trained(two_hop, steps=1)
    pupil = local(slots=5)
    (other,) = grpo.train(Learner(pupil.agent, pupil.model, settings(steps=1, micro_batch_tokens=1)), two_hop)
    for name, value in curve[0].items():
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
        list(grpo.train(learner, two_hop))
    assert unchanged(learner.model, before)
    learner = parted(lambda model: None, learning_rate=0.02, steps=3)
    engine = learner.agent.engine
    engine.update_weights = lambda tensors, version: setattr(engine, "version", version)
    steps = grpo.train(learner, two_hop)
    next(steps)
    with pytest.raises(TrainingHalted, match="do not run the same weights"):
        list(steps)


def test_weights_that_are_not_numbers_stop_the_run(two_hop):
    with pytest.raises(TrainingHalted):
        list(grpo.train(parted(lambda model: model.norm.weight.fill_(math.nan)), two_hop))


@pytest.mark.parametrize("recipe", ["grpo-t", "grpo-tcr", "grpo-scr"])
def test_every_recipe_takes_steps(two_hop, recipe):
    curve, after = trained(two_hop, recipe)
    assert all(metrics["optimizer_steps"] > 0 and np.isfinite(metrics["loss"]) for metrics in curve)
    assert not unchanged(local().model, after)


def test_what_the_trainer_said_is_kept_beside_each_episode_that_it_learned_from(two_hop):
    pupil = local()
    (progress,) = grpo.train(Learner(pupil.agent, pupil.model, settings(steps=1)), two_hop)
    assert len(progress.played) == 16
    learned = 0
    for episode, (lesson,) in progress.played:
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
    list(grpo.train(Learner(pupil.agent, pupil.model, settings(steps=3)), two_hop))
    assert [version for version, _ in seen] == [0, 1, 2, 3]
    assert unchanged(pupil.model, seen[-1][1])
    assert not unchanged(pupil.model, seen[0][1])


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
    steps = grpo.train(learner, Liar(two_hop, {5, 16, 17}, **lies))
    progress = next(steps)
    assert progress.metrics["episodes/broken"] == 1
    assert [(episode.start.seed, len(lessons)) for episode, lessons in progress.played if len(lessons) != 1] == [(5, 0)]
    assert all(math.isfinite(value) for value in progress.metrics.values())
    assert all(math.isfinite(lesson.advantage) for _, lessons in progress.played for lesson in lessons)
    before = weights(pupil.model)
    with pytest.raises(TrainingHalted, match=rf"2 of 16 episodes .*max_broken_share=0.1; the last fault: {said}"):
        next(steps)
    assert (learner.step, learner.torn) == (1, False)
    assert unchanged(pupil.model, before)


# Gradients that are no numbers.


def poisoned(learner, steps):
    """Its gradients are no numbers in these steps, though its losses and weights are."""
    poison = math.nan
    learner.model.model.norm.weight.register_hook(lambda grad: grad * poison if learner.step in steps else grad)
    return learner


def test_a_gradient_that_is_no_number_is_skipped_and_the_run_goes_on(two_hop):
    pupil = local()
    seen = []
    for progress in grpo.train(poisoned(Learner(pupil.agent, pupil.model, settings(steps=3)), {1}), two_hop):
        metrics = progress.metrics
        seen.append((metrics["optimizer_steps"], metrics["skipped_steps"], progress.note, weights(pupil.model)))
        assert math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])
    assert [(one[0] > 0, one[1] > 0) for one in seen] == [(True, False), (False, True), (True, False)]
    assert ["optimizer steps were skipped: their gradients" in one[2] for one in seen] == [False, True, False]
    assert unchanged(pupil.model, seen[2][3])
    assert all(torch.equal(seen[1][3][name], weight) for name, weight in seen[0][3].items())
    assert not unchanged(pupil.model, seen[1][3])


def test_a_run_whose_gradients_stay_no_numbers_stops_between_two_steps(two_hop):
    pupil = local()
    learner = poisoned(Learner(pupil.agent, pupil.model, settings(steps=9, num_mini_batches=1)), range(1, 9))
    steps = grpo.train(learner, two_hop)
    next(steps)
    before = weights(pupil.model)
    with pytest.raises(TrainingHalted, match="of the last 3 optimizer steps were no numbers"):
        list(steps)
    assert (learner.step, learner.torn) == (4, False)
    assert unchanged(pupil.model, before)


# Steps on episodes made by hand.


def learned(monkeypatch, batch, model, recipe="grpo-t", advantages=None, **changes):
    """One step on a batch; its progress."""
    if advantages is not None:
        monkeypatch.setattr(Group, "__call__", lambda *_: advantages)
    monkeypatch.setattr(grpo, "rollouts", lambda *_, **__: iter([batch]))
    config = settings(recipe, **{"steps": 1, "num_mini_batches": 1, "beta": 0.0, **changes})
    (progress,) = grpo.train(Learner(Agent(families.Echo()), model, config), families.Talk(1))
    monkeypatch.undo()
    return progress


def by_hand(monkeypatch, specs, **changes):
    """Train one step on episodes of (group, sampled lengths, reward); returns metrics, the model and the episodes."""
    model = tiny_model(40, layers=2, seed=5)
    episodes = spoken(model, specs)
    return learned(monkeypatch, batch_of(episodes), model, **changes).metrics, model, episodes


def gradient_norm(episodes, advantages, tokens):
    model = tiny_model(40, layers=2, seed=5)
    batch = pack(episodes, advantages)
    said, logprobs_N = batch.sampled_N, token_logprobs(model, batch)
    parts = (logprobs_N, batch.sampled_logprobs_N, batch.advantages_N, batch.row_N)
    (Clip()(*(part[said] for part in parts)).loss_S.sum() / tokens).backward()
    return float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())


def test_an_episode_without_advantage_counts_in_the_denominator_and_has_no_gradient(monkeypatch):
    specs = [(0, [4], 1.0), (0, [9, 7], 0.0), (0, [5], 0.0)]
    metrics, _, episodes = by_hand(monkeypatch, specs, advantages=[1.0, 0.0, -2.0])
    assert metrics["loss"] == pytest.approx((-1.0 * 4 + 2.0 * 5) / 25, rel=1e-5)
    taught = gradient_norm([episodes[0], episodes[2]], [1.0, -2.0], 25)
    assert metrics["grad_norm"] == pytest.approx(taught, rel=1e-5)
    whole = gradient_norm(episodes, [1.0, 0.0, -2.0], 25)
    assert metrics["grad_norm"] == pytest.approx(whole, rel=1e-5)


def test_an_advantage_may_be_one_number_for_each_token(monkeypatch):
    """Of an episode of two turns and one of one; what is equal for all tokens is as one number for the episode."""
    specs, turns = [(0, [2, 2], 1.0), (0, [3], 0.0)], [np.array([0.5, 0.0, -1.0, 2.0]), np.array([0.0, 0.0, -0.5])]
    model = tiny_model(40, layers=2, seed=5)
    episodes = spoken(model, specs)
    progress = learned(monkeypatch, batch_of(episodes), model, advantages=turns)
    assert progress.metrics["loss"] == pytest.approx(-(0.5 - 1.0 + 2.0 - 0.5) / 7, rel=1e-5)
    assert progress.metrics["grad_norm"] == pytest.approx(gradient_norm(episodes, turns, 7), rel=1e-5)
    assert [lesson.advantage for _, (lesson,) in progress.played] == pytest.approx([1.5 / 4, -0.5 / 3])
    flat, _, _ = by_hand(monkeypatch, specs, advantages=[np.full(4, 1.5), np.full(3, -1.0)])
    assert flat["grad_norm"] == by_hand(monkeypatch, specs, advantages=[1.5, -1.0])[0]["grad_norm"]


def test_an_episode_that_is_two_samples_teaches_as_two_copies_of_it(monkeypatch):
    model = tiny_model(40, layers=2, seed=5)
    episodes = spoken(model, [(0, [4], 1.0), (0, [6], 0.0), (1, [4], 0.0)])
    batch = batch_of(episodes)
    twice = replace(batch, samples=(Sample(0, 0), Sample(1, 0), Sample(0, 1), Sample(2, 1)))
    progress = learned(monkeypatch, twice, model, advantages=[1.0, -1.0, 0.5, -0.25])
    copies = [episodes[0], episodes[1], episodes[0], episodes[2]]
    expected = gradient_norm(copies, [1.0, -1.0, 0.5, -0.25], 18)
    assert progress.metrics["grad_norm"] == pytest.approx(expected, rel=1e-5)
    found = [[lesson.advantage for lesson in lessons] for _, lessons in progress.played]
    assert found == [[1.0, 0.5], [-1.0], [-0.25]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": "grpo-scr", "epsilon": 0.2},
        {"recipe": "grpo-scr", "epsilon": 0.2, "beta": 0.1},
        {"recipe": "grpo-scr", "epsilon": 0.2, "beta": 0.1, "kl_estimator": "k2"},
    ],
)
def test_the_denominator_is_that_of_the_mini_batch_not_of_the_micro_batch(monkeypatch, changes):
    specs = [(0, [2], 1.0), (0, [30], 0.0), (0, [3, 3], 0.0), (0, [12], 1.0)]
    found = [by_hand(monkeypatch, specs, micro_batch_tokens=most, **changes)[0] for most in (1, 50, 10_000)]
    for metrics in found[1:]:
        assert metrics["grad_norm"] == pytest.approx(found[0]["grad_norm"], rel=1e-5)
        assert metrics["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)


def test_with_samples_that_weigh_the_same_a_long_episode_counts_no_more_than_a_short_one(monkeypatch):
    specs = [(0, [2], 1.0), (0, [30, 8], 0.0)]
    metrics, _, _ = by_hand(monkeypatch, specs, advantages=[1.0, -1.0], aggregation="sample")
    assert metrics["loss"] == pytest.approx(0.0, abs=1e-6)
    metrics, _, _ = by_hand(monkeypatch, specs, advantages=[1.0, -1.0], aggregation="token")
    assert metrics["loss"] == pytest.approx((38 - 2) / 40, rel=1e-5)


def test_each_mini_batch_has_a_gradient_of_its_own(monkeypatch):
    specs = [(0, [4], 1.0), (0, [9], 0.0), (1, [2, 5], 0.0), (1, [6], 1.0)]
    metrics, _, episodes = by_hand(monkeypatch, specs, num_mini_batches=2, learning_rate=0.0, max_grad_norm=1e9)
    half = 2**-0.5
    first = gradient_norm(episodes[:2], [half, -half], 13)
    second = gradient_norm(episodes[2:], [-half, half], 13)
    assert metrics["grad_norm"] == pytest.approx((first + second) / 2, rel=1e-4)


def test_a_batch_of_equal_rewards_teaches_nothing_and_says_so(monkeypatch):
    """No step at all: not even AdamW's weight decay."""
    model = tiny_model(40, layers=2, seed=5)
    before = weights(model)
    specs = [(0, [4], 1.0), (0, [6], 1.0), (1, [5], 0.0), (1, [3], 0.0)]
    progress = learned(monkeypatch, batch_of(spoken(model, specs)), model)
    assert progress.metrics["optimizer_steps"] == 0
    assert progress.metrics["frac_reward_zero_std"] == 1.0
    assert "nothing was learned from rewards in this step" in progress.note
    assert unchanged(model, before)
    specs[0] = (0, [4], 0.5)
    assert learned(monkeypatch, batch_of(spoken(model, specs)), model).note == ""


def test_a_success_becomes_likelier_and_a_failure_less_likely(monkeypatch):
    _, model, (good, bad) = by_hand(monkeypatch, [(0, [6], 1.0), (0, [6], 0.0)], learning_rate=1e-4)
    for episode, better in ((good, True), (bad, False)):
        (row,) = episode.rows
        change = (families.fresh_logprobs(model, row) - row.logprobs[row.sampled]).sum()
        assert bool(change > 0) is better


@pytest.mark.parametrize(("parts", "steps"), [(1, 1), (2, 2), (9, 3)])
def test_there_are_as_many_optimizer_steps_as_mini_batches_and_no_more_than_groups(monkeypatch, parts, steps):
    specs = [(group, [3 + member], float(member)) for group in (4, 9, 2) for member in (0, 1)]
    assert by_hand(monkeypatch, specs, num_mini_batches=parts)[0]["optimizer_steps"] == steps


def test_two_broken_episodes_in_twenty_stop_the_run_and_one_is_counted(monkeypatch):
    whole = [(0, [3 + n % 3], float(n % 2)) for n in range(20)]
    broken = [(0, [3], None)]
    metrics, _, _ = by_hand(monkeypatch, [*whole[:19], *broken])
    assert metrics["episodes/broken"] == 1
    with pytest.raises(TrainingHalted, match=r"2 of 20 episodes of this step are BROKEN.*it broke"):
        by_hand(monkeypatch, [*whole[:18], *broken, *broken])


def test_a_broken_episode_is_never_trained_on(monkeypatch):
    specs = [(0, [4], 1.0), (0, [5], 0.0)]
    with_broken, _, _ = by_hand(monkeypatch, [*specs, (0, [20], None)], max_broken_share=0.5)
    without, _, _ = by_hand(monkeypatch, specs)
    for name in ("loss", "grad_norm", "reward", "num_tokens"):
        assert with_broken[name] == without[name]


def test_a_step_in_which_everything_broke_or_nobody_had_room_to_speak_stops_the_run(monkeypatch):
    with pytest.raises(TrainingHalted, match="2 of 2"):
        by_hand(monkeypatch, [(0, [4], None), (0, [4], None)], max_broken_share=1.0)
    with pytest.raises(TrainingHalted, match="longer than max_episode_tokens"):
        by_hand(monkeypatch, [(0, [], 0.0), (0, [], 0.0)])


def test_an_episode_that_had_no_room_to_speak_is_survived(monkeypatch):
    metrics, _, _ = by_hand(monkeypatch, [(0, [], 0.0), (0, [3], 1.0)])
    assert metrics["optimizer_steps"] == 1
    assert all(np.isfinite(value) for value in metrics.values())


def test_rows_of_a_rewritten_history_are_counted(monkeypatch):
    model = tiny_model(40, layers=2, seed=5)
    rows = [spoken(model, [(0, [4], 1.0)])[0].rows[0] for _ in range(3)]
    episodes = [families.an_episode(*rows, reward=1.0), families.an_episode(rows[0], reward=0.0)]
    assert learned(monkeypatch, batch_of(episodes), model).metrics["episodes/extra_rows"] == 1.0
