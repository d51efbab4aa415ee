"""A critic learns what to expect, its run goes on bit by bit, and what contradicts itself is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from batches import batch_of, local, restless, same, settings, spoken, weights

import palaestra.trainers.learn.update as updating
from palaestra import ConfigError, TrainingHalted
from palaestra.agents import Agent
from palaestra.agents.local_model import load
from palaestra.trainers import grpo
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.critic import Critic, ValueHead
from palaestra.trainers.run import checkpoint


def learner_of(model, **changes):
    import families

    config = settings("ppo", **{"beta": 0.0, "kl_in_reward": False, "num_mini_batches": 1, **changes})
    return Learner(Agent(families.Echo()), model, config)


def test_it_learns_what_episodes_come_to_and_the_model_learns_nothing_from_its_loss():
    model = restless()
    learner = learner_of(
        model, learning_rate=0.0, lr_schedule="constant", lam=1.0, cliprange_value=None, critic_learning_rate=1e-2
    )
    batch, before = batch_of(spoken(model, [(0, [6], 1.0), (0, [8], 0.0), (1, [5, 4], 1.0)])), weights(model)
    losses = []
    for _ in range(60):
        scores = score_batch(learner, batch)
        figures, _ = update(learner, batch, learner.config.recipe.advantage(batch, scores), scores)
        losses.append(figures["critic/loss"])
    assert losses[0] == pytest.approx(0.5, rel=1e-3), "at first it expects 0, and rewards are 1 or -1"
    assert losses[-1] < 0.05
    assert same(before, weights(model))
    for values, reward in zip(score_batch(learner, batch).values, batch.rewards, strict=True):
        assert abs(values.mean() - reward) < 0.5


def test_of_the_clipped_and_the_plain_value_loss_the_larger_counts():
    critic = Critic(ValueHead(cliprange_value=0.2), restless(), seed=0)
    hidden_SD = torch.ones(2, 64)
    assert critic.values(hidden_SD).tolist() == [0.0, 0.0]
    # The returns are 1. Moves from 0.5 and from -0.5 are cut at 0.3 and at -0.3: losses 0.7^2 and 1.3^2, beside 1.
    loss = critic.learn(hidden_SD, torch.ones(2), torch.tensor([0.5, -0.5]), torch.tensor([1.0, 10.0]))
    assert loss == pytest.approx(0.5 * (1.0 * 1 + 1.69 * 10))


def test_without_a_correction_the_ratio_is_still_to_the_engines_log_probs():
    model = restless()
    scores = score_batch(learner_of(model), batch_of(spoken(model, [(0, [6], 1.0), (0, [8], 0.0)])))
    assert scores.old is None
    assert [len(values) for values in scores.values] == [6, 8]
    assert not np.concatenate(scores.values).any(), "it begins by expecting nothing"


def test_a_run_with_a_critic_goes_on_bit_by_bit(two_hop, tmp_path):
    def begun():
        pupil = local()
        return Learner(pupil.agent, pupil.model, settings("ppo", steps=3)), pupil

    whole, _ = begun()
    curve = [progress.metrics["critic/loss"] for progress in grpo.train_learner(whole, two_hop)]
    part, _ = begun()
    steps = grpo.train_learner(part, two_hop)
    next(steps)
    checkpoint.save(part, tmp_path)
    steps.close()
    found, _ = checkpoint.newest(tmp_path)
    made = load(str(found.model), slots=16)
    again = checkpoint.restore(found, made, part.config, reference=part.reference)
    assert [progress.metrics["critic/loss"] for progress in grpo.train_learner(again, two_hop)] == curve[1:]
    assert same(weights(whole.model), weights(again.model))
    ours, theirs = whole.critic.tensors(), again.critic.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert curve[0] > 0


@pytest.mark.parametrize("wrong", [{"advantage": "gae"}, {"critic": "head"}])
def test_a_critic_that_nobody_asks_and_an_advantage_without_its_critic_are_refused(wrong):
    with pytest.raises(ConfigError, match="belong together"):
        tiny_config("x", **wrong)
    with pytest.raises(ConfigError, match="nothing would be charged"):
        tiny_config("x", kl_in_reward=True)
    assert BatchScores().values is None


def critics_weights(learner):
    return {name: tensor.clone() for name, tensor in learner.critic.tensors().items() if name.startswith("weight/")}


def learn(learner, batch):
    scores = score_batch(learner, batch)
    return update(learner, batch, learner.config.recipe.advantage(batch, scores), scores)[0]


def test_a_pass_that_is_no_number_changes_neither_model_nor_critic_and_the_next_step_learns_on(monkeypatch):
    model = restless()
    learner = learner_of(model, critic_learning_rate=1e-2, learning_rate=1e-3, lam=1.0)
    batch = batch_of(spoken(model, [(0, [6], 1.0), (0, [8], 0.0)]))
    learn(learner, batch)
    before, of_critic = weights(model), learner.critic.tensors()
    of_critic = {name: tensor.clone() for name, tensor in of_critic.items()}
    real = updating.token_logprobs

    def poisoned(*given):
        scores = real(*given)
        return replace(scores, logprobs_N=scores.logprobs_N * float("nan"), hidden_SD=scores.hidden_SD * float("nan"))

    monkeypatch.setattr(updating, "token_logprobs", poisoned)
    monkeypatch.setattr(updating, "audited_gap", lambda *_: {})  # Another alarm, which would end the run.
    figures = learn(learner, batch)
    assert (figures["optimizer_steps"], figures["skipped_steps"], learner.skipped) == (0, 1, 1)
    assert same(before, weights(model)) and same(of_critic, learner.critic.tensors())
    monkeypatch.setattr(updating, "token_logprobs", real)
    figures = learn(learner, batch)
    assert (figures["skipped_steps"], learner.skipped) == (0, 0)
    assert not same(of_critic, learner.critic.tensors())
    assert all(tensor.isfinite().all() for tensor in learner.critic.tensors().values())


def test_a_checkpoint_does_not_keep_a_critic_of_no_numbers(tmp_path):
    learner = learner_of(restless())
    with torch.no_grad():
        next(learner.critic._head.parameters()).fill_(float("inf"))
    with pytest.raises(TrainingHalted, match="not finite"):
        checkpoint.save(learner, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_critics_gradient_is_clipped_as_the_models_is(monkeypatch):
    model, norms = restless(), []
    step = Critic.step

    def measured(self, rate):
        norms.append(float(torch.cat([weight.grad.flatten() for weight in self._head.parameters()]).norm()))
        step(self, rate)

    monkeypatch.setattr(Critic, "step", measured)
    for most in (1e9, 0.05):
        learner = learner_of(model, max_grad_norm=most, learning_rate=0.0)
        learn(learner, batch_of(spoken(model, [(0, [6], 1.0), (0, [8], 1.0)])))
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.05, rel=1e-3)


def test_the_critic_follows_the_learning_rate_schedule():
    """AdamW's first step is as long as its rate: 1 - 0.95 * 3 / 6 of it in the fourth of seven steps."""
    model = restless()
    learner = learner_of(model, critic_learning_rate=4e-3, learning_rate=0.0, lr_schedule="linear", steps=7)
    learner.step, before = 3, critics_weights(learner)
    learn(learner, batch_of(spoken(model, [(0, [6], 1.0), (0, [8], 1.0)])))
    after = critics_weights(learner)
    farthest = max(float((after[name] - before[name]).abs().max()) for name in before)
    assert farthest == pytest.approx(0.525 * 4e-3, rel=1e-3)
