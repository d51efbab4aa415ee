"""Trees of episodes: who branches where, what a branch shares with its parent, and what is learned from a tree."""

from contextlib import closing
from dataclasses import replace

import families
import gymnasium
import numpy as np
import pytest
from batches import batch_of, local, same, settings, weights
from families import random_agent
from going import on, state, step_folder, told

import palaestra
from palaestra import ConfigError
from palaestra.envs import Task, ToolEnv, Toolkit, tool
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.episode import Branch
from palaestra.record import Record, from_line, to_line
from palaestra.trainers import grpo
from palaestra.trainers.audit.advantage_checks import advantage_findings
from palaestra.trainers.batch import BatchScores, Scored
from palaestra.trainers.config.recipes import find_recipe
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.losses.group_advantages import GroupNormalized
from palaestra.trainers.losses.token_advantages import turn_of_tokens
from palaestra.trainers.losses.tree_advantages import TreeNormalized
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.tree import Tree, rises
from palaestra.trainers.samplers.uniform import Uniform
from palaestra.trainers.setup.open_run import check

ENV = "test/Dice-v0"


class Dice(ToolEnv):
    """A user who rolls a die after each turn; the reward is the share of even numbers. A random agent plays it."""

    max_turns = 4

    def task(self, rng):
        return Task(f"Say number {rng.integers(100)}.")

    def user(self, attempt):
        self.rolled = [*getattr(self, "rolled", []), int(self.rng.integers(1000))]
        return f"You rolled {self.rolled} after {len(attempt.answer)}."

    def reward(self, attempt):
        return float(len(attempt.messages[-1]["content"]) % 3 == 0)


class Lamp(Toolkit):
    """A toolkit without snapshots."""

    @tool
    def light(self) -> str:
        """Light it."""
        return "lit"


class Dark(Dice):
    toolkits = (Lamp,)


@pytest.fixture(autouse=True)
def _registered():
    palaestra.register(ENV, f"{__name__}:Dice")
    palaestra.register("test/Dark-v0", f"{__name__}:Dark")
    yield
    for env_id in (ENV, "test/Dark-v0"):
        gymnasium.registry.pop(env_id)


def of(sampler, **changes):
    """The settings of a run in the dice with this sampler."""
    limits = {"max_turn_tokens": 12, "max_episode_tokens": 400, "num_generations": 6, "num_prompts": 3}
    config = settings("tree-grpo", sampler=sampler, beta=0.0, **{**limits, **changes})
    return replace(config, env=replace(config.env, env_id=ENV))


def trained(sampler, **changes):
    """The steps of a run, and the weights after it."""
    pupil = local()
    with closing(palaestra.arena(ENV, 16, ordered=True)) as arena:
        learner = Learner(pupil.agent, pupil.model, of(sampler, **changes))
        return list(grpo.train_learner(learner, arena)), weights(pupil.model)


@pytest.mark.parametrize("branch_at", ["random", "entropy"])
def test_a_branch_has_the_turns_tokens_and_environment_of_its_parent_up_to_its_own_first_turn(branch_at):
    steps, _ = trained(Tree(2, 2, branch_at=branch_at))
    branches = 0
    for step in steps:
        by_place = {(e.start.group, e.start.seed, e.start.branch.number): e for e, _ in step.rollouts}
        assert len(by_place) == 18
        shared_tokens = 0
        for episode in by_place.values():
            branch = episode.start.branch
            if not branch.turn:
                continue
            branches += 1
            parent = by_place[episode.start.group, episode.start.seed, branch.parent]
            (row,), (other,) = episode.rows, parent.rows
            own = int(np.flatnonzero(row.sampled)[(turn_of_tokens(episode) < branch.turn).sum()])
            for name in ("ids", "sampled", "logprobs", "versions"):
                assert (getattr(row, name)[:own] == getattr(other, name)[:own]).all()
            assert (row.ids[own:].tolist()) != other.ids[own:].tolist()
            assert episode.attempt.messages[: 1 + 2 * branch.turn] == parent.attempt.messages[: 1 + 2 * branch.turn]
            assert episode.branch_points == {} and branch.point is None
            shared_tokens += int(row.sampled[:own].sum())
            record = from_line(to_line(Record(ENV, episode)))
            assert record.episode.start == episode.start
            assert ReplayMachines().replay([record]) is None
        whole = sum(e.sampled_tokens for e in by_place.values())
        assert step.metrics["num_tokens/sampled"] == whole - shared_tokens, "shared tokens are sampled once"
        assert step.metrics["sampler/shared_tokens"] == shared_tokens
        assert step.metrics["audit/gap_p99"] < 1e-4
    assert branches > 10


def test_a_tree_without_branches_is_a_plain_group_bit_by_bit():
    steps, learned = trained(Tree(6))
    plain, others = trained(Uniform(), advantage="group")
    assert same(learned, others)
    for step, other in zip(steps, plain, strict=True):
        assert step.metrics["loss"] == other.metrics["loss"]
        for (episode, lessons), (other_episode, other_lessons) in zip(step.rollouts, other.rollouts, strict=True):
            assert (episode.start, episode.attempt) == (other_episode.start, other_episode.attempt)
            assert [lesson.advantage for lesson in lessons] == [lesson.advantage for lesson in other_lessons]


@pytest.mark.prove
def test_a_killed_run_goes_on_as_one_that_was_left_alone(tmp_path):
    kept = {"checkpoint_every": 1, "keep_checkpoints": 3, "recorded_groups": 3, "steps": 3, "eval_tasks": 0}
    config = replace(of(Tree(2, 2), **kept), model=str(random_agent(tmp_path / "model")))
    on(tmp_path / "whole", config, steps=3)
    on(tmp_path / "killed", config, steps=1)
    on(tmp_path / "killed", steps=3)
    assert told(tmp_path / "whole") == told(tmp_path / "killed")
    whole, killed = (state(step_folder(tmp_path / name, 3)) for name in ("whole", "killed"))
    assert same(whole, killed)


def member(seed, reward, number=0):
    episode = families.an_episode(families.token_row(3, [2]), reward=reward, seed=seed)
    return replace(episode, start=replace(episode.start, branch=Branch(number)))


def test_tree_grpo_adds_the_advantage_in_the_tree_to_that_in_the_group():
    # Two trees of two: rewards 1 and 0, and 1 and 1. By hand, with the deviation of a sample (ddof 1):
    # in the tree (1 - .5) / .7071 = .7071; in the group (1 - .75) / .5 = .5 and (0 - .75) / .5 = -1.5.
    batch = batch_of([member(0, 1.0), member(0, 0.0, 2), member(1, 1.0), member(1, 1.0, 3)], lambda e: {"r": e.reward})
    values = TreeNormalized()(batch, BatchScores())
    assert values == pytest.approx([0.7071 + 0.5, -0.7071 - 1.5, 0.5, 0.5], abs=1e-4)
    recipe = find_recipe("tree-grpo")
    assert list(advantage_findings(recipe, batch, BatchScores(), values)) == []
    assert list(advantage_findings(recipe, batch, BatchScores(), GroupNormalized()(batch, BatchScores())))


def grown(number, seed, turns, logprobs):
    """An episode with so many turns of two tokens, and points before all but the first."""
    row = families.token_row(3, [2] * turns)
    row.logprobs[row.sampled] = np.repeat(logprobs, 2)
    episode = families.an_episode(row, seed=seed)
    start = replace(episode.start, branch=Branch(number))
    return replace(episode, start=start, branch_points={turn: f"{seed}/{turn}" for turn in range(1, turns)})


def next_round(options, *episodes):
    """The starts of the round after these episodes have ended."""
    sampler = options("x/Y-v0", 10, Groups(1, 8))
    first = [sampler.next() for _ in range(options.trees)]
    for episode, start in zip(episodes, first, strict=True):
        assert start.branch == Branch()
        sampler.observe(Scored(replace(episode, start=start), {"r": 0.0}))
    return list(iter(sampler.next, None))


def test_entropy_is_that_of_the_first_tokens_of_a_turn_and_rises_from_the_first_turn():
    assert rises(grown(0, 0, 3, [-0.5, -2.0, -0.25]), 20) == pytest.approx({1: 1.5, 2: -0.25})


def test_a_turn_is_branched_with_alpha_plus_beta_times_the_rise_and_the_rest_are_new_trees():
    sure, never = grown(0, 0, 3, [-0.5, -2.5, -0.5]), grown(0, 1, 3, [-2.5, -0.5, -0.5])
    starts = next_round(Tree(2, branch_at="entropy", branch_probability=0.0, branch_slope=0.5), sure, never)
    # A rise of two nats gives probability 1; a fall and no rise give 0. So one place is a branch, five are new trees.
    assert [start.branch for start in starts] == [Branch(2, 0, 1), *[Branch()] * 5]
    assert starts[0].branch.point == "0/1"
    assert [start.seed for start in starts] == [0, 3, 4, 5, 6, 7]
    half = next_round(Tree(2, branch_at="entropy", branch_probability=1.0, branch_slope=0.0), sure, never)
    assert [start.branch.turn for start in half] == [1, 1, 2, 2, 0, 0], "each turn once, earlier turns first"


def test_random_branches_are_as_many_in_each_tree_and_one_without_turns_begins_again():
    starts = next_round(Tree(2), grown(0, 0, 4, [-1] * 4), grown(0, 1, 1, [-1]))
    assert [start.seed for start in starts] == [0, 1, 0, 1, 0, 1]
    assert {start.branch.turn for start in starts[::2]} <= {1, 2, 3}
    assert all(start.branch.turn == 0 and start.branch.point is None for start in starts[1::2])
    assert len({start.key for start in starts}) == 6
    assert len({start.for_engine.seed for start in starts}) == 6, "each has its own noise"


def test_rounds_share_the_branches_evenly():
    assert Tree(2, 3).ends_of_rounds(8) == [2, 4, 6, 8]
    assert Tree().ends_of_rounds(8) == [4, 8]
    assert Tree(4, 4).ends_of_rounds(6) == [4, 4, 5, 5, 6]


def test_environments_without_snapshots_games_and_greedy_attempts_are_refused():
    config = of(Tree(2))
    with pytest.raises(ConfigError, match=r"begin with snapshots: .*Lamp does not support"):
        check(replace(config, model="a folder", env=replace(config.env, env_id="test/Dark-v0")))
    with pytest.raises(ConfigError, match="plays in one process"):
        check(replace(config, model="a folder", env=replace(config.env, workers=2)))
    with pytest.raises(ConfigError, match="is a game of the seats a, b"):
        Tree()("x/Y-v0", 10, Groups(2, 4, ("a", "b"), frozenset("ab")))
    with pytest.raises(ConfigError, match="no greedy attempt"):
        Tree()("x/Y-v0", 10, Groups(2, 4, greedy=True))
    with pytest.raises(ConfigError, match="trees is 4 and num_generations is 2"):
        Tree(4)("x/Y-v0", 10, Groups(2, 2))
