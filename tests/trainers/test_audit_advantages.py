"""What an advantage's closed form makes of the rewards is what is learned from, after damping and bound."""

from dataclasses import dataclass, replace

import families
import numpy as np
import parrot
import pytest
from batches import batch_of
from test_token_advantages import called

import palaestra
from palaestra import Status, TrainingHalted
from palaestra.trainers import grpo
from palaestra.trainers.audit.advantage_checks import advantage_findings, shape_findings
from palaestra.trainers.batch import BatchScores, Sample, Scored
from palaestra.trainers.config.recipes import RECIPES, find_recipe
from palaestra.trainers.losses import group_advantages as advantages
from palaestra.trainers.losses import token_advantages
from palaestra.trainers.losses.group_advantages import (
    GreedyBaseline,
    GroupNormalized,
    LeaveOneOut,
    OptimalBaseline,
    damped,
)
from palaestra.trainers.losses.token_advantages import GAE, TurnAdvantage, Whitened

PARTS = [
    GroupNormalized(),
    GroupNormalized("none"),
    GroupNormalized("batch"),
    LeaveOneOut(),
    OptimalBaseline(),
    GreedyBaseline(),
    TurnAdvantage(0.4),
    Whitened(),
    Whitened(group_baseline=True),
    GAE(gamma=0.97, lam=0.8),
    GAE(whiten_advantages=False),
]
WRONG = {
    "flipped": lambda values: [-value for value in values],
    "constant": lambda values: [np.full_like(value, 0.3) for value in values],
    "shifted": lambda values: [value + 0.1 for value in values],
    "too large": lambda values: [value * 1.2 for value in values],
    "no number": lambda values: [value * np.nan for value in values],
}


def played():
    """Three groups, of which the second is dead, one sample without a token, and a greedy episode of the first task;
    what their tokens cost and what a critic expects.
    """
    ok, failed = Status.OK, Status.TOOL_ERROR
    specs = [(1.0, [ok, ok], 0), (0.0, [failed, ok], 0), (0.2, [ok], 0), (0.5, [], 1), (0.5, [failed], 1)]
    made = [called(calls, reward, n, group, 2 + n % 3) for n, (reward, calls, group) in enumerate(specs)]
    made += [
        called([ok, failed, ok], 1.0, 5, 2, 4),
        families.an_episode(families.token_row(3, []), reward=0.4, group=2),
    ]
    batch = batch_of(made)
    greedy = called([], 0.7, 9)
    greedy = replace(greedy, start=replace(greedy.start, greedy=True))
    batch = replace(batch, rollouts=(*batch.rollouts, Scored(greedy, {"outcome": 0.4})))
    rng = np.random.default_rng(1)
    costs = tuple(0.1 * rng.random(length) for length in batch.lengths)
    values = tuple(rng.normal(size=length).astype(np.float32) for length in batch.lengths)
    return batch, BatchScores(costs=costs, values=values)


def learned_from(recipe, batch, scores):
    return damped(recipe.advantage(batch, scores), batch, recipe.max_advantage)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("advantage", PARTS, ids=repr)
def test_advantages_that_are_not_those_of_the_recipe_are_found(advantage, wrong):
    batch, scores = played()
    recipe = replace(find_recipe("ppo" if isinstance(advantage, GAE) else "reinforce++"), advantage=advantage)
    assert recipe.kl.kl_in_reward
    values = learned_from(recipe, batch, scores)
    assert list(shape_findings(batch, scores, values)) == list(advantage_findings(recipe, batch, scores, values)) == []
    found = list(advantage_findings(recipe, batch, scores, wrong(values)))
    assert found and {one.check for one in found} == {"advantages"}


def test_a_copy_that_is_not_damped_and_an_advantage_beyond_the_bound_are_found():
    batch, scores = played()
    copies = tuple(Sample(place, 3, 0.5) for place in range(3))
    batch, scores = replace(batch, samples=(*batch.samples, *copies)), BatchScores()
    recipe = replace(find_recipe("vspo"), max_advantage=0.9)
    plain = GroupNormalized()(batch, scores)
    assert list(advantage_findings(recipe, batch, scores, damped(plain, batch, 0.9))) == []
    (bounded,) = advantage_findings(recipe, batch, scores, damped(plain, batch, None))
    assert "group 0" in bounded.place
    undamped = replace(batch, samples=tuple(replace(sample, weight=1.0) for sample in batch.samples))
    (found,) = advantage_findings(replace(recipe, max_advantage=None), batch, scores, damped(plain, undamped, None))
    assert "computed anew" in found.details


def test_the_audit_does_not_compute_with_what_the_parts_compute_with(monkeypatch):
    """One mistake in what all parts start from is found in each, and not made a second time."""
    batch, scores = played()
    monkeypatch.setattr(advantages, "returns", lambda batch, _: -batch.rewards)
    monkeypatch.setattr(token_advantages, "returns", lambda batch, _: -batch.rewards)
    monkeypatch.setattr(token_advantages, "token_rewards", lambda batch, _: [np.ones(n) for n in batch.lengths])
    for advantage in PARTS:
        recipe = replace(find_recipe("ppo" if isinstance(advantage, GAE) else "reinforce++"), advantage=advantage)
        assert list(advantage_findings(recipe, batch, scores, learned_from(recipe, batch, scores))), advantage


@dataclass(frozen=True, slots=True)
class Ranked(GroupNormalized):
    """A researcher's own: places within the batch, whatever its base class computes."""

    def __call__(self, batch, scores):
        return 1.0 - batch.rewards.argsort().argsort()


def test_a_part_of_ones_own_is_held_to_numbers_of_its_samples_alone():
    batch, scores = played()
    recipe = replace(find_recipe("grpo-t"), advantage=Ranked())
    values = learned_from(recipe, batch, scores)
    assert list(shape_findings(batch, scores, values)) == list(advantage_findings(recipe, batch, scores, values)) == []
    for wrong in (values[1:], [np.ones(99) for _ in values], [np.float64(np.inf) for _ in values]):
        (found,) = shape_findings(batch, scores, wrong)
        assert found.check == "advantages"


def test_what_a_critic_expects_is_named_where_it_is_no_number():
    batch, scores = played()
    scores = replace(scores, values=(scores.values[0] * np.nan, *scores.values[1:]))
    (found,) = shape_findings(batch, scores, GAE()(batch, scores))
    assert found.check == "critic"


@pytest.mark.parametrize("recipe", [name for name, recipe in RECIPES.items() if recipe.judge is None])
def test_a_clean_run_of_every_recipe_halts_nowhere_and_one_with_a_flipped_sign_halts(monkeypatch, recipe):
    part = type(find_recipe(recipe).advantage)
    plain, arena = part.__call__, palaestra.arena(parrot.ENV, 12)
    try:
        assert len(list(grpo.train_learner(parrot.learner(recipe=recipe), arena))) == 2
        monkeypatch.setattr(part, "__call__", lambda self, *given: [-value for value in plain(self, *given)])
        with pytest.raises(TrainingHalted, match="advantages: episode of group"):
            list(grpo.train_learner(parrot.learner(recipe=recipe), arena))
    finally:
        arena.close()


def test_a_run_in_which_the_bound_and_the_weights_of_copies_are_left_out_halts(monkeypatch):
    arena = palaestra.arena(parrot.ENV, 12)
    try:
        assert len(list(grpo.train_learner(parrot.learner(recipe="vspo", max_advantage=0.4), arena))) == 2
        monkeypatch.setattr(grpo, "damped", lambda values, *_: values)
        with pytest.raises(TrainingHalted, match="advantages: episode of group"):
            list(grpo.train_learner(parrot.learner(recipe="vspo", max_advantage=0.4), arena))
    finally:
        arena.close()
