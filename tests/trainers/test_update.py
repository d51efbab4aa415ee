"""One step on episodes made by hand: what is learned from, how much each token counts, and what is told of it."""

from dataclasses import replace

import families
import numpy as np
import pytest
import torch
from batches import batch_of, same, settings, spoken, weights

from palaestra import TrainingHalted
from palaestra.agents import Agent
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers import grpo
from palaestra.trainers.batch import Sample
from palaestra.trainers.learn.forward import token_logprobs
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.packing import pack
from palaestra.trainers.learn.update import update as grpo_update
from palaestra.trainers.losses.group_advantages import Successes
from palaestra.trainers.losses.policy import Clip


def untrained():
    return tiny_model(40, layers=2, seed=5)


def learned(monkeypatch, batch, model, recipe="grpo-t", advantages=None, reference=None, **changes):
    """One step on a batch; its progress."""
    if advantages is not None:
        monkeypatch.setattr(Successes, "__call__", lambda *_: advantages)
        changes["advantage"] = "successes"  # One that is held to no closed form.
    monkeypatch.setattr(grpo.Rollouts, "next", lambda self: batch)
    monkeypatch.setattr(grpo.Rollouts, "learned_from", lambda self, batch: {})
    config = settings(recipe, **{"steps": 1, "num_mini_batches": 1, "beta": 0.0, **changes})
    learner = Learner(Agent(families.Echo()), model, config, reference=reference)
    (progress,) = grpo.train_learner(learner, families.Talk(1))
    monkeypatch.undo()
    return progress


def by_hand(monkeypatch, specs, **changes):
    """Train one step on episodes of (group, sampled lengths, reward); returns metrics, the model and the episodes."""
    model = untrained()
    episodes = spoken(model, specs)
    return learned(monkeypatch, batch_of(episodes), model, **changes).metrics, model, episodes


def gradient_norm(episodes, advantages, tokens):
    model = untrained()
    batch = pack(episodes, advantages)
    said, logprobs_N = batch.sampled_N, token_logprobs(model, batch).logprobs_N
    parts = (logprobs_N, batch.sampled_logprobs_N, batch.advantages_N, batch.row_N)
    (Clip()(*(part[said] for part in parts)).loss_S.sum() / tokens).backward()
    return float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())


def test_an_advantage_may_be_one_number_for_each_token(monkeypatch):
    """Also where they add up to 0. What is equal for all tokens is as one number for the episode."""
    specs, turns = [(0, [2, 2], 1.0), (0, [3], 0.0)], [np.array([0.5, 0.0, -1.0, 0.5]), np.array([0.0, 0.0, -0.5])]
    model = untrained()
    episodes = spoken(model, specs)
    progress = learned(monkeypatch, batch_of(episodes), model, advantages=turns)
    assert progress.metrics["loss"] == pytest.approx(0.5 / 7, rel=1e-5)
    assert progress.metrics["grad_norm"] == pytest.approx(gradient_norm(episodes, turns, 7), rel=1e-5)
    assert [lesson.advantage for _, (lesson,) in progress.rollouts] == pytest.approx([0.0, -0.5 / 3])
    flat, _, _ = by_hand(monkeypatch, specs, advantages=[np.full(4, 1.5), np.full(3, -1.0)])
    assert flat["grad_norm"] == by_hand(monkeypatch, specs, advantages=[1.5, -1.0])[0]["grad_norm"]


def test_a_copy_of_a_group_teaches_by_its_weight_and_within_the_bound(monkeypatch):
    model = untrained()
    episodes = spoken(model, [(0, [4], 1.0), (0, [6], 0.0)])
    copied = replace(batch_of(episodes), samples=(Sample(0, 0), Sample(1, 0), Sample(0, 1, 0.5), Sample(1, 1, 0.25)))
    progress = learned(monkeypatch, copied, model, advantages=[1.0, -1.0, 4.0, -2.0], max_advantage=1.5)
    assert [[lesson.advantage for lesson in lessons] for _, lessons in progress.rollouts] == [[1.0, 1.5], [-1.0, -0.5]]
    expected = gradient_norm([*episodes, *episodes], [1.0, -1.0, 1.5, -0.5], 20)
    assert progress.metrics["grad_norm"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recipe": "grpo-scr", "epsilon": 0.2, "epsilon_high": 0.28},
        {"recipe": "grpo-scr", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.1},
        {"recipe": "grpo-scr", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.1, "kl_estimator": "k2"},
    ],
)
def test_f03_the_denominator_is_that_of_the_mini_batch_not_of_the_micro_batch(monkeypatch, changes):
    specs = [(0, [2], 1.0), (0, [30], 0.0), (0, [3, 3], 0.0), (0, [12], 1.0)]
    if "beta" in changes:
        changes = {**changes, "reference": tiny_model(40, layers=2, seed=6)}
    found = [by_hand(monkeypatch, specs, micro_batch_tokens=most, **changes)[0] for most in (1, 50, 10_000)]
    for metrics in found[1:]:
        assert metrics["grad_norm"] == pytest.approx(found[0]["grad_norm"], rel=1e-5)
        assert metrics["loss"] == pytest.approx(found[0]["loss"], rel=1e-5, abs=1e-7)


def test_a_batch_of_equal_rewards_teaches_nothing_and_says_so(monkeypatch):
    """No step at all: not even AdamW's weight decay."""
    model = untrained()
    before = weights(model)
    specs = [(0, [4], 1.0), (0, [6], 1.0), (1, [5], 0.0), (1, [3], 0.0)]
    progress = learned(monkeypatch, batch_of(spoken(model, specs)), model)
    assert progress.metrics["optimizer_steps"] == 0
    assert progress.metrics["frac_reward_zero_std"] == 1.0
    assert "nothing was learned from rewards in this step" in progress.note
    assert same(weights(model), before)
    specs[0] = (0, [4], 0.5)
    assert learned(monkeypatch, batch_of(spoken(model, specs)), model).note == ""


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


@pytest.mark.parametrize("advantage", ["whitened", "turns", "gae"])
def test_an_episode_without_a_token_has_a_lesson_also_where_each_token_has_an_advantage(monkeypatch, advantage):
    """A prompt may leave no room for an answer."""
    batch = batch_of(spoken(untrained(), [(0, [], 0.0), (0, [3], 1.0), (1, [2, 1], 0.0), (1, [2], 1.0)]))
    critic = "head" if advantage == "gae" else "none"
    progress = learned(monkeypatch, batch, untrained(), advantage=advantage, critic=critic)
    lessons = [lesson for _, (lesson,) in progress.rollouts]
    assert lessons[0].advantage == 0.0 and all(lesson.advantage for lesson in lessons[1:])
    assert progress.metrics["optimizer_steps"] == 1


def test_a_step_of_dead_groups_tells_nothing_of_passes_that_were_not_made(monkeypatch):
    """And the entropy is of the same tokens in every step: those that were played."""
    episodes = spoken(untrained(), [(0, [4], 1.0), (0, [7], 0.0), (1, [5], 1.0), (1, [6], 1.0)])
    figures = [
        learned(monkeypatch, batch_of(own), untrained()).metrics for own in (episodes[:2], episodes[2:], episodes)
    ]
    of_passes = figures[0].keys() - figures[1].keys()
    assert of_passes == {
        *(f"sampling/sampling_logp_difference/{name}" for name in ("mean", "max")),
        *(f"audit/gap_p{share}" for share in (50, 95, 99)),
        *(f"clip_ratio/{name}_mean" for name in ("low", "high", "region", "free_high")),
        *("loss", "grad_norm", "entropy/learned", "num_tokens/shared_ratio"),
    }
    assert figures[1].keys() <= figures[0].keys() == figures[2].keys()
    mixed = (11 * figures[0]["entropy"] + 11 * figures[1]["entropy"]) / 22
    assert figures[2]["entropy"] == pytest.approx(mixed, rel=1e-6)
    assert figures[2]["entropy/learned"] == pytest.approx(figures[0]["entropy/learned"], rel=1e-5)


def test_rows_of_a_rewritten_history_are_counted(monkeypatch):
    model = untrained()
    rows = [spoken(model, [(0, [4], 1.0)])[0].rows[0] for _ in range(3)]
    episodes = [families.an_episode(*rows, reward=1.0), families.an_episode(rows[0], reward=0.0)]
    assert learned(monkeypatch, batch_of(episodes), model).metrics["episodes/extra_rows"] == 1.0


def test_f53_several_passes_take_several_steps_and_ratios_stay_those_to_who_sampled(monkeypatch):
    specs = [(0, [4], 1.0), (0, [6], 0.0), (1, [3], 0.0), (1, [2, 2], 1.0)]
    one, _, _ = by_hand(monkeypatch, specs, num_mini_batches=2, learning_rate=1e-2)
    three, _, _ = by_hand(monkeypatch, specs, num_mini_batches=2, num_iterations=3, learning_rate=1e-2)
    assert (one["optimizer_steps"], three["optimizer_steps"]) == (2, 6)
    assert three["clip_ratio/region_mean"] > one["clip_ratio/region_mean"]
    assert three["sampling/sampling_logp_difference/max"] < 2e-5, "what is compared is before any step"


def test_a_bonus_for_entropy_raises_it(monkeypatch):
    specs = [(0, [8], 1.0), (0, [8], 1.0)]  # Equal rewards: nothing else pulls.
    _, plain, episodes = by_hand(monkeypatch, specs)
    _, raised, _ = by_hand(monkeypatch, specs, entropy_coef=0.5, learning_rate=1e-2)
    packed = pack(episodes, [0.0, 0.0])
    before, after = (token_logprobs(model, packed).entropies_N.detach().sum() for model in (plain, raised))
    assert float(after) > float(before) + 0.01


def test_f51_a_kl_in_the_reward_is_charged_and_not_in_the_loss(monkeypatch):
    """Equal outcomes: what tells the two apart is only how far each has moved from the reference."""
    model, reference = untrained(), tiny_model(40, layers=2, seed=9)
    episodes = spoken(model, [(0, [4], 1.0), (0, [7], 1.0)])
    kept = {}

    def recorded(learner, batch, advantages, scores):
        kept.update(advantages=advantages, scores=scores, batch=batch)
        return grpo_update(learner, batch, advantages, scores)

    monkeypatch.setattr(grpo, "update", recorded)
    settled = {"beta": 0.5, "kl_in_reward": True, "kl_estimator": "k1", "advantage": "leave-one-out"}
    learned(monkeypatch, batch_of(episodes), model, reference=reference, **settled)
    assert kept["scores"].reference is None
    costs = [float(cost.sum()) for cost in kept["scores"].costs]
    assert [len(cost) for cost in kept["scores"].costs] == [4, 7]
    expected = 0.5 * np.array([episode_gap(episode, reference) for episode in episodes])
    np.testing.assert_allclose(costs, expected, rtol=1e-4)
    np.testing.assert_allclose(kept["advantages"], [costs[1] - costs[0], costs[0] - costs[1]], rtol=1e-6)


def episode_gap(episode, reference):
    """How much likelier what was sampled is than under the reference, added up."""
    (row,) = episode.rows
    return float((row.logprobs[row.sampled] - families.fresh_logprobs(reference, row)).sum())
