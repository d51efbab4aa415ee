"""Importance weights in worked numbers, and what becomes of a step that they change nothing of."""

import math
from dataclasses import replace

import families
import numpy as np
import pytest
from batches import batch_of, local, same, settings, spoken, weights

from palaestra import ConfigError, TrainingHalted
from palaestra.agents import Agent
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers import grpo
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.score_batch import score_batch
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.importance_correction import Masked, Truncated, corrected


def test_a_part_of_the_tokens_tells_as_much_as_all_and_what_is_kept_and_corrected_is_reported():
    row = families.token_row(2, [3, 3], logprob=-1.0)
    batch = batch_of([families.an_episode(row), families.an_episode(reward=0.0)])
    old = np.array([-1, -1, -1, -1, -1 + math.log(9), -1 + math.log(3)], np.float32)
    found = corrected(Masked(0.5, 4.0), batch, BatchScores(old=(old, np.zeros(0, np.float32))))
    assert found.token_counts == [5, 0]
    np.testing.assert_allclose(found.factors[0], [1, 1, 1, 1, 0, 3], rtol=1e-6)
    gap = {"correction/gap_mean": math.log(27) / 6, "correction/gap_max": math.log(9)}
    shares = {"correction/kept_share": 5 / 6, "correction/effective_share": 49 / 6 / 13}
    assert found.figures == pytest.approx(gap | shares, rel=1e-6)


def stepped(correction, spoil=0.0, **changes):
    """The model after one step on three episodes, by whose engine's log-probs are off by so much; and the figures."""
    model = tiny_model(40, layers=1, seed=5)
    episodes = spoken(model, [(0, [4, 3], 1.0), (0, [6], 0.0), (0, [5], 0.0)])
    episodes[2].rows[0].logprobs[episodes[2].rows[0].sampled] += spoil
    config = settings(**{"correction": correction, "num_mini_batches": 1, "max_logprob_gap": 9.0, **changes})
    learner, batch = Learner(Agent(families.Echo()), model, config), batch_of(episodes)
    figures, _ = update(learner, batch, [0.5, -1.0, 0.7], score_batch(learner, batch))
    return weights(model), figures


@pytest.mark.parametrize("correction", ["truncated", "masked"])
def test_f52_where_engine_and_learner_agree_a_correction_changes_nothing(correction):
    plain, _ = stepped("none")
    after, figures = stepped(correction)
    for name, weight in after.items():
        np.testing.assert_allclose(weight, plain[name], atol=2e-5)
    assert figures["correction/kept_share"] == 1
    assert figures["correction/effective_share"] == pytest.approx(1)


def test_f52_what_is_rejected_leaves_the_denominator():
    """A step with an episode that is rejected is, for the others, as if it had not been played."""
    _, whole = stepped("masked", spoil=3.0)
    assert whole["correction/kept_share"] == pytest.approx(13 / 18)
    assert whole["loss"] == pytest.approx(-(0.5 * 7 - 1.0 * 6) / 13, rel=1e-4)
    with pytest.raises(TrainingHalted, match="correction: this step: of 18 tokens none is trained on"):
        stepped({"name": "masked", "lowest_weight": 0.999, "highest_weight": 1.0}, temperature=3.0)


def test_bounds_that_reject_a_weight_of_one_are_refused():
    for wrong in ({"lowest_weight": 1.1}, {"highest_weight": 0.9}, {"lowest_weight": 0.0}):
        with pytest.raises(ConfigError, match="weight"):
            Masked(**wrong)
    with pytest.raises(ConfigError, match="cap"):
        Truncated(cap=0.0)


class Other:
    """An engine whose log-probs are off by as much, as those of another precision are."""

    def __init__(self, engine, off, shares_weights):
        self._engine, self._off, self.shares_weights = engine, off, shares_weights

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def poll(self, timeout=0.0):
        done = self._engine.poll(timeout)
        return [replace(one, logprobs=[value - self._off for value in one.logprobs]) for one in done]


@pytest.mark.parametrize(
    ("off", "shared", "bound", "stops"),
    [
        (0.01, True, None, True),
        (0.01, False, None, False),
        (0.2, False, None, True),
        (0.2, False, 0.3, False),
        (0.01, True, 0.02, False),
        (0.01, False, 0.005, True),
    ],
)
def test_a_gap_is_corrected_for_and_reported_and_beyond_its_bound_stops_the_run(two_hop, off, shared, bound, stops):
    made = local(layers=1)
    agent = replace(made.agent, engine=Other(made.agent.engine, off, shared))
    learner = Learner(agent, made.model, settings(steps=1, correction="truncated", max_logprob_gap=bound))
    steps = grpo.train_learner(learner, two_hop)
    if stops:
        before = weights(made.model)
        with pytest.raises(TrainingHalted, match=r"at most .* expected, max_logprob_gap"):
            next(steps)
        assert same(weights(made.model), before)
    else:
        metrics = next(steps).metrics
        for name in ("sampling/sampling_logp_difference/mean", "correction/gap_mean", "correction/gap_max"):
            assert metrics[name] == pytest.approx(off, rel=1e-2)
