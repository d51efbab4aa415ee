"""Measuring: honest intervals, BROKEN in none of the figures, every task as heavy as the next."""

from dataclasses import replace

import families
import pytest

import palaestra
from palaestra import Ending, Status
from palaestra.agents import Agent, ScriptedPolicy
from palaestra.trainers.evaluate import Both, evaluate, pooled, summarise, wilson

EVAL = "palaestra/TwoHop-v0"


@pytest.mark.parametrize(
    ("mean", "count", "low", "high"),
    [(0.5, 100, 0.40383, 0.59617), (1.0, 256, 0.98522, 1.0), (0.0, 10, 0.0, 0.27754), (0.3, 0, 0.0, 1.0)],
)
def test_wilsons_interval(mean, count, low, high):
    assert wilson(mean, count) == pytest.approx((low, high), abs=1e-4)


def test_more_samples_of_the_same_tasks_do_not_narrow_the_interval():
    one = [families.an_episode(reward=float(task % 2), task=task) for task in range(10)]
    four = [families.an_episode(reward=float(task % 2), task=task, seed=s) for task in range(10) for s in range(4)]
    assert (summarise(one, 10, 1, 1.0).low) == summarise(four, 10, 4, 1.0).low


def test_every_task_weighs_the_same_though_episodes_broke():
    episodes = [
        *[families.an_episode(reward=1.0, task=0, seed=seed) for seed in range(4)],
        families.an_episode(reward=0.0, task=1),
        families.an_episode(reward=None, task=1, seed=1, ending=Ending.BROKEN),
    ]
    report = summarise(episodes, 2, 4, 1.0)
    assert report.success == 0.5
    assert report.broken == 1
    assert report.endings == {"answered": 5, "turn_limit": 0, "length_limit": 0, "broken": 1}
    assert report.reward == pytest.approx(0.8)


def test_calls_are_counted_by_how_they_went():
    ok, bad = Status.OK, Status.BAD_CALL
    episodes = [
        families.an_episode(reward=1.0, calls=[ok, bad], task=0),
        families.an_episode(reward=0.0, calls=[bad, Status.TOOL_ERROR], task=1),
        families.an_episode(reward=1.0, calls=[], task=2),
        families.an_episode(reward=0.0, calls=[ok], task=3),
    ]
    report = summarise(episodes, 4, 1, 1.0)
    assert (report.calls, report.failed_calls) == (1.25, 0.6)
    assert (report.tool_share, report.success_with_tool) == (0.5, 0.5)


def test_nothing_played_is_no_success():
    report = summarise([], 0, 1, 1.0)
    assert (report.success, report.low, report.high, report.tokens) == (0.0, 0.0, 1.0, 0.0)


def test_the_demonstrator_is_measured_on_the_evaluation_split():
    arena = palaestra.arena(EVAL, 8, split="eval")
    report, episodes = evaluate(Agent(ScriptedPolicy(palaestra.demonstrator(EVAL))), arena, tasks=10, samples=2)
    arena.close()
    assert report.success == 1.0
    assert (report.tasks, report.samples, report.calls) == (10, 2, 2.0)
    assert [episode.start.task for episode in episodes] == sorted([*range(10)] * 2)
    assert len({episode.start.seed for episode in episodes}) == 20
    assert min(episode.start.seed for episode in episodes) >= 2**40, "no noise of training is used again"
    assert set(report.as_dict()) >= {"success", "low", "high", "endings", "broken"}


def test_no_more_tasks_are_played_than_there_are():
    arena = families.Talk(4)
    arena.task_count = 3
    report, episodes = evaluate(Agent(families.Echo()), arena, tasks=256)
    assert report.tasks == 3
    assert len(episodes) == 3


def test_agents_pooled_on_the_same_tasks_count_each_task_once():
    def both(successes):
        episodes = [families.an_episode(reward=value, task=task) for task, value in enumerate(successes)]
        report = summarise(episodes, len(successes), 1, 1.0)
        return Both(report, replace(report, temperature=0.0), episodes, episodes)

    found = pooled([both([1.0, 0.0]), both([0.0, 0.0]), both([1.0, 1.0])])
    assert found.sampled.success == pytest.approx(0.5)
    assert (found.sampled.tasks, found.sampled.samples) == (2, 3)
    assert (found.sampled.low, found.sampled.high) == pytest.approx(wilson(0.5, 2))
    assert found.greedy.temperature == 0.0
