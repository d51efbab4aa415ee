"""Tasks are drawn evenly, each step its own, and no seed is used twice in a run."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.sampling.uniform import uniform_starts


def drawn(step, count=2**31, prompts=12, generations=8, seed=0):
    return list(uniform_starts(step, task_count=count, num_prompts=prompts, num_generations=generations, seed=seed))


@given(st.integers(0, 500), st.integers(0, 2**31), st.integers(1, 20), st.integers(2, 6))
def test_a_step_is_groups_of_one_task_each(step, seed, prompts, generations):
    starts = drawn(step, prompts=prompts, generations=generations, seed=seed)
    assert starts == drawn(step, prompts=prompts, generations=generations, seed=seed)
    assert len(starts) == prompts * generations
    groups = {start.group: {s.task for s in starts if s.group == start.group} for start in starts}
    assert len(groups) == prompts
    assert all(len(tasks) == 1 for tasks in groups.values())
    assert len({task for tasks in groups.values() for task in tasks}) == prompts


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
