"""Tasks are drawn evenly, no seed is used twice in a run, and a batch takes groups in order whatever ends first."""

import asyncio
import json
from collections import Counter
from contextlib import closing

import families
import numpy as np
import pytest
from batches import local
from hypothesis import given
from hypothesis import strategies as st

from palaestra.agents import Agent, TokenLimits
from palaestra.trainers.batch import Scored
from palaestra.trainers.reward.async_scoring import JudgeResult, Scoring
from palaestra.trainers.rollout.rollouts import play_batch
from palaestra.trainers.samplers.group_sampler import Groups, InOrder
from palaestra.trainers.samplers.task_of_group import Even
from palaestra.trainers.samplers.uniform import Uniform


def sampler(count=2**31, prompts=12, generations=8, seats=(), learning=(), seed=0):
    return Uniform()("x/Y-v0", count, Groups(prompts, generations, seats, frozenset(learning or seats)), seed)


def played(start, fault="", terms=True):
    """An episode of a start, scored."""
    episode = families.an_episode(task=start.task)
    episode = type(episode)(start, episode.attempt, (), episode.ending, 1.0, episode.parts, fault)
    return Scored(episode, {"outcome": 1.0} if terms else None)


def asked(source, ahead=0):
    """All that it wants now."""
    return list(iter(lambda: source.next(ahead), None))


def drawn(step, **options):
    """The starts of a batch."""
    source = sampler(**options)
    source.load({"first": step * source.groups.num_prompts})
    return asked(source)


@given(st.integers(0, 500), st.integers(0, 2**31), st.integers(1, 20), st.integers(2, 6))
def test_a_step_is_groups_of_one_task_each(step, seed, prompts, generations):
    starts = drawn(step, prompts=prompts, generations=generations, seed=seed)
    assert starts == drawn(step, prompts=prompts, generations=generations, seed=seed)
    assert len(starts) == prompts * generations
    groups = {start.group: {s.task for s in starts if s.group == start.group} for start in starts}
    assert len(groups) == prompts
    assert all(len(tasks) == 1 for tasks in groups.values())
    assert len({task for tasks in groups.values() for task in tasks}) == prompts
    assert {start.env for start in starts} == {"x/Y-v0"}


def test_no_two_episodes_of_a_run_share_a_seed_and_no_two_steps_a_group():
    steps = [drawn(step) for step in range(60)]
    seeds = Counter(start.seed for step in steps for start in step)
    assert max(seeds.values()) == 1
    groups = [{start.group for start in step} for step in steps]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_every_task_is_as_likely():
    found = Counter(start.task for step in range(400) for start in drawn(step, count=20, prompts=5, generations=2))
    counts = np.array([found[task] for task in range(20)]) / 2
    assert ((counts - 100) ** 2 / 100).sum() < 19 + 4.5 * np.sqrt(38)


def test_other_seeds_and_steps_draw_other_tasks():
    base = {start.task for start in drawn(0)}
    assert base.isdisjoint(start.task for start in drawn(1))
    assert base.isdisjoint(start.task for start in drawn(0, seed=1))


def test_too_few_tasks_are_all_used_before_any_comes_again():
    tasks = Counter(start.task for start in drawn(0, count=5, prompts=8, generations=2))
    assert set(tasks) == set(range(5))
    assert sum(tasks.values()) == 16
    assert {start.task for start in drawn(3, count=1, prompts=3)} == {0}


def test_a_group_draws_the_same_whatever_was_drawn_before():
    """As where groups of two batches are played at once."""
    there, back, fresh = Even("x", 50, 4, 3), Even("x", 50, 4, 3), [Even("x", 50, 4, 3)(group) for group in range(12)]
    assert [there(group) for group in range(12)] == fresh
    assert [back(group) for group in reversed(range(12))] == fresh[::-1]


@given(st.randoms(use_true_random=False), st.integers(0, 2))
def test_a_batch_takes_groups_in_order_whatever_order_they_are_heard_in(random, ahead):
    source = sampler(prompts=3, generations=2)
    waiting, numbers = [], []
    for _ in range(200):
        waiting += asked(source, ahead)
        assert len(waiting) <= 6 * (ahead + 1)
        source.observe(played(waiting.pop(random.randrange(len(waiting)))))
        if (batch := source.batch()) is not None:
            numbers.append(batch.number)
            groups = [batch.rollouts[sample.place].episode.start.group for sample in batch.samples]
            assert set(groups) == {3 * batch.number + n for n in range(3)}
            assert batch.groups.tolist() == [group - 3 * batch.number for group in groups]
            assert len(batch.rollouts) == 6
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 200 // 6 - ahead


def test_nothing_is_begun_beyond_the_batch_but_what_is_asked_ahead():
    source = sampler(prompts=3, generations=2)
    first = asked(source)
    assert {start.group for start in first} == {0, 1, 2}
    assert {start.group for start in asked(source, ahead=1)} == {3, 4, 5}
    assert source.batch() is None
    for start in first:
        source.observe(played(start))
    assert source.batch().number == 0
    assert asked(source) == [], "the batch at hand was begun ahead"
    assert {start.group for start in asked(source, ahead=1)} == {6, 7, 8}


@pytest.mark.parametrize("seats", [(), ("a_0", "b_0")])
def test_a_sampler_goes_on_where_another_stood(seats):
    """Also where it had begun what comes after, and heard some of it: that is played again."""
    source = sampler(prompts=3, generations=2, seats=seats, seed=5)
    known = []
    for _ in range(3):
        starts = asked(source)
        known += starts
        for start in starts:
            source.observe(played(start))
        batch = source.batch()
    coming = [source.next() for _ in range(4)]
    source.observe(played(coming[0]))
    again = sampler(prompts=3, generations=2, seats=seats, seed=5)
    again.load(json.loads(json.dumps(batch.state)))
    assert again.state() == batch.state == source.state()
    starts = asked(again)
    assert starts[:4] == coming
    assert not {start.key for start in starts} & {start.key for start in known}
    for start in starts:
        again.observe(played(start))
    assert again.batch().number == 3


def test_seats_of_a_game_have_groups_of_their_own_and_the_learning_ones_are_samples():
    source = sampler(prompts=2, generations=2, seats=("a_0", "b_0"), learning=("b_0",))
    starts = asked(source)
    assert [start.seat for start in starts] == ["a_0", "b_0"] * 4
    assert all(len({(one.task, one.seed) for one in starts[at : at + 2]}) == 1 for at in range(0, 8, 2))
    assert len({(start.group, start.seat) for start in starts}) == len({start.group for start in starts}) == 4
    for number, start in enumerate(starts):
        source.observe(played(start, fault="cut short by a_0" * (number == 1), terms=number != 3))
    batch = source.batch()
    assert len(batch.rollouts) == 8
    assert [batch.rollouts[sample.place].episode.start for sample in batch.samples] == [starts[5], starts[7]]
    assert batch.groups.tolist() == [0, 0], "groups of a batch are counted without gaps"


# What is played for a batch.


class Fickle(InOrder):
    """Plays twice as many groups as it wants, and gives up those that begin last as soon as one has ended."""

    done = False

    def next(self, ahead=0):
        return super().next(1)

    def observe(self, scored):
        self.done = True
        super().observe(scored)

    def still_needed(self, start):
        return start.group < self.groups.num_prompts or not self.done


def test_tokens_of_episodes_that_were_given_up_are_counted():
    agent = local(slots=8, layers=1).agent
    source = Fickle(lambda group: ("", group % 2), Groups(2, 2))
    limits = TokenLimits(30, 400)
    batch = play_batch(agent, families.Talk(8), source, Scoring(lambda episode: {}), limits=limits)
    heard = sum(scored.episode.sampled_tokens for scored in batch.rollouts)
    assert [scored.episode.start.group for scored in batch.rollouts].count(0) == 2
    assert batch.figures["num_tokens/sampled"] == agent.engine.sampled > heard > 0


@pytest.mark.parametrize("ordered", [False, True])
def test_batches_follow_one_another_every_start_is_played_once_and_a_judge_is_waited_for(ordered):
    async def judge(episodes):
        await asyncio.sleep(0.01)
        return [JudgeResult({"style": 1.0})] * len(episodes)

    source, arena = sampler(count=9, prompts=3, generations=2), families.Talk(4)
    with closing(Scoring(lambda episode: {"outcome": 1.0}, judge, together=4, ordered=ordered)) as scoring:
        batches = [play_batch(Agent(families.Echo()), arena, source, scoring) for _ in range(3)]
    assert [batch.number for batch in batches] == [0, 1, 2]
    assert all({s.episode.start.group // 3 for s in batch.rollouts} == {batch.number} for batch in batches)
    assert all(s.terms == {"outcome": 1.0, "style": 1.0} for batch in batches for s in batch.rollouts)
    assert len({start.key for start in arena.begun}) == len(arena.begun) == 18
