"""A critic learns what to expect, its run goes on bit by bit, and what contradicts itself is refused."""

import numpy as np
import pytest
import torch
from batches import batch_of, local, restless, same, settings, spoken, weights

from palaestra import ConfigError
from palaestra.agents import Agent
from palaestra.agents.local_model import load
from palaestra.trainers import checkpoint, grpo
from palaestra.trainers.batch import Seen
from palaestra.trainers.config import tiny_config
from palaestra.trainers.learner import Learner
from palaestra.trainers.look import look
from palaestra.trainers.update import update


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
        seen = look(learner, batch)
        figures, _ = update(learner, batch, learner.config.recipe.advantage(batch, seen), seen)
        losses.append(figures["critic/loss"])
    assert losses[0] == pytest.approx(0.5, rel=1e-3), "at first it expects 0, and rewards are 1 or -1"
    assert losses[-1] < 0.05
    assert same(before, weights(model))
    for values, reward in zip(look(learner, batch).values, batch.rewards, strict=True):
        assert abs(values.mean() - reward) < 0.5


def test_without_a_correction_the_ratio_is_still_to_the_engines_log_probs():
    model = restless()
    seen = look(learner_of(model), batch_of(spoken(model, [(0, [6], 1.0), (0, [8], 0.0)])))
    assert seen.old is None
    assert [len(values) for values in seen.values] == [6, 8]
    assert not np.concatenate(seen.values).any(), "it begins by expecting nothing"


def test_a_run_with_a_critic_goes_on_bit_by_bit(two_hop, tmp_path):
    def begun():
        pupil = local()
        return Learner(pupil.agent, pupil.model, settings("ppo", steps=3)), pupil

    whole, _ = begun()
    curve = [progress.metrics["critic/loss"] for progress in grpo.train(whole, two_hop)]
    part, _ = begun()
    steps = grpo.train(part, two_hop)
    next(steps)
    checkpoint.save(part, tmp_path)
    steps.close()
    found, _ = checkpoint.newest(tmp_path)
    made = load(str(found.model), slots=16)
    again = checkpoint.restore(found, made, part.config, reference=part.reference)
    assert [progress.metrics["critic/loss"] for progress in grpo.train(again, two_hop)] == curve[1:]
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
    assert Seen().values is None
