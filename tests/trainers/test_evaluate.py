"""Measuring: honest intervals, BROKEN in none of the figures, every task as heavy as the next."""

import importlib
import json
import logging
import re
import threading
from contextlib import closing
from dataclasses import replace

import families
import gymnasium
import pytest

import palaestra
from palaestra import Ending, Status, UsageError
from palaestra.agents import Agent, ScriptedPolicy
from palaestra.envs import Task, ToolEnv, tool
from palaestra.formats import ParsedCall, hermes
from palaestra.trainers.evaluation.evaluate import Both, Report, compare, evaluate, pooled, summarise
from palaestra.trainers.evaluation.intervals import clopper_pearson

EVAL = "palaestra/TwoHop-v0"


def test_more_samples_of_the_same_tasks_do_not_narrow_the_interval():
    one = [families.an_episode(reward=float(task % 2), task=task) for task in range(10)]
    four = [families.an_episode(reward=float(task % 2), task=task, seed=s) for task in range(10) for s in range(4)]
    assert (summarise(one, 10, 1, 1.0).low) == summarise(four, 10, 4, 1.0).low
    assert (summarise(one, 10, 1, 1.0).low, summarise(one, 10, 1, 1.0).high) == clopper_pearson(0.5, 10)


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
    assert (report.success, report.low, report.high, report.tokens) == (0.0, 0.0, 1.0, None)


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
    assert found.sampled.at_k["any@3"]["value"] == 1.0
    assert found.sampled.low < 0.25
    assert found.greedy.temperature == 0.0


def answered(values, answers, task):
    """Episodes of one task, of several rows as where a template rewrites history; None in place of a success broke."""
    for seed, (value, answer) in enumerate(zip(values, answers, strict=True)):
        rows = [families.token_row(3, [2])] * (1 + seed)
        episode = families.an_episode(
            *rows, reward=value, task=task, seed=seed, ending=Ending.BROKEN if value is None else Ending.ANSWERED
        )
        yield replace(episode, attempt=replace(episode.attempt, answer=answer))


def test_the_figures_of_every_k_are_reported_and_broken_episodes_are_in_none():
    episodes = [
        *answered([1.0, 0.0, 0.0, 1.0], ["a", "b", "b", "a"], 0),
        *answered([0.0, None, 0.0, 1.0], ["x", "y", "x", "z"], 1),
        *answered([None, None, None, None], [None] * 4, 2),
    ]
    report = summarise(episodes, 3, 4, 1.0)
    assert report.broken == 5
    assert report.success == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert {re.split("[@^]", name)[1] for name in report.at_k} == {"1", "2", "4"}
    assert report.at_k["pass@1"]["value"] == pytest.approx(report.success)
    assert report.at_k["pass@2"]["value"] == pytest.approx((5 / 6 + 2 / 3) / 2)
    assert [report.at_k[f"pass@{k}"]["tasks"] for k in (1, 2, 4)] == [2, 2, 1]
    assert report.at_k["gap@2"]["value"] == pytest.approx((5 / 6 - 1 / 2 + 2 / 3 - 1 / 3) / 2), "pass less avg"
    assert report.at_k["any@4"]["value"] == 1.0
    assert report.at_k["maj@4"]["value"] == pytest.approx(0.5), "a and b tie"
    assert report.at_k["maj@1"]["value"] == pytest.approx(report.success)
    assert report.at_k["bootstrap best@4"]["value"] == pytest.approx(1 - 0.5**4, abs=0.03)
    assert report.at_k["bootstrap maj@4"]["value"] == pytest.approx(0.5, abs=0.05)


def test_a_report_comes_back_from_json():
    report = summarise(list(answered([1.0, 0.5, None], ["a", "b", None], 0)), 1, 3, 0.7)
    assert Report(**json.loads(json.dumps(report.as_dict()))) == report


def test_an_evaluation_tells_how_far_it_is():
    arena = palaestra.arena(EVAL, 4, split="eval")
    agent, shown = Agent(ScriptedPolicy(palaestra.demonstrator(EVAL))), []
    with closing(arena):
        evaluate(agent, arena, tasks=3, samples=2, stage="sampled", on_progress=shown.append)
    assert [(progress.stage, progress.step, progress.total) for progress in shown] == [
        ("sampled", step, 6) for step in range(1, 7)
    ]
    low, high = clopper_pearson(1.0, 3)
    last = {"rewards/success/mean": 1.0, "success/low": low, "success/high": high, "tokens": 0}
    assert shown[-1].metrics == pytest.approx(last), "three tasks, not six episodes"


def test_progress_says_nothing_of_success_while_all_broke():
    arena = families.Talk(2, broken=lambda start, tries: start.task < 2)
    shown = []
    evaluate(Agent(families.Echo()), arena, tasks=3, on_progress=shown.append)
    assert any(not progress.metrics for progress in shown)
    assert shown[-1].step == 3


class Stuck(ToolEnv):
    """Its tool waits until it is named as what is waited for."""

    named = threading.Event()

    def task(self, rng):
        return Task(prompt="Ask.", answer="")

    @tool(blocking=True, timeout=60)
    def ask(self, question: str) -> str:
        "Ask a service."
        return "an answer" if self.named.wait(60) else "none"

    def reward(self, attempt):
        return float(attempt.calls[0].text == "an answer")


def test_an_evaluation_whose_tool_hangs_says_which_slot_tool_and_arguments_it_waits_for(monkeypatch, caplog):
    class Heard(logging.Handler):
        def emit(self, record):
            if "ask(question='why') has run" in record.getMessage():
                Stuck.named.set()

    def script(messages, rng):
        return "done" if messages[-1]["role"] == "tool" else hermes.render([ParsedCall("ask", {"question": "why"})])

    log, heard = logging.getLogger("palaestra.agents"), Heard()
    monkeypatch.setattr(importlib.import_module("palaestra.agents.play"), "REPORT_SECONDS", 0.0)
    palaestra.register("test/Stuck-v0", f"{__name__}:Stuck")
    log.addHandler(heard)
    try:
        with closing(palaestra.arena("test/Stuck-v0", 2)) as arena:
            report, _ = evaluate(Agent(ScriptedPolicy(script)), arena, tasks=2)
    finally:
        log.removeHandler(heard)
        gymnasium.registry.pop("test/Stuck-v0")
    assert report.success == 1.0
    assert any("of 2 of 2 episodes; test/Stuck-v0 slot " in line for line in caplog.messages)


def test_an_evaluation_that_is_interrupted_leaves_nothing_running():
    def interrupt(_):
        raise KeyboardInterrupt

    engine = families.Echo(delay=3)
    with pytest.raises(KeyboardInterrupt):
        evaluate(Agent(engine), families.Talk(8), tasks=100, on_progress=interrupt)
    assert not engine.waiting


def test_two_agents_episodes_are_compared_by_task():
    better = [*answered([1.0, 1.0], "aa", 0), *answered([1.0, 0.0], "ab", 1), *answered([None, None], "aa", 2)]
    worse = [*answered([1.0, 0.0], "ab", 0), *answered([1.0, 0.0], "ab", 1), *answered([0.0, 0.0], "bb", 2)]
    found = compare(better, worse)
    assert (found.tasks, found.unscored) == (2, 1)
    assert (found.wins, found.ties, found.losses, found.difference) == (1, 1, 0, 0.25)
    with pytest.raises(UsageError, match="different tasks"):
        compare(better, worse[:2])


def test_two_agents_meet_the_same_tasks_with_the_same_noise():
    def starts(tasks):
        engine = families.Echo()
        return {
            request.start
            for request in evaluate(Agent(engine), families.Talk(4), tasks=tasks, samples=3) and engine.submitted
        }

    assert starts(5) == starts(5)
    assert len(starts(5)) == 15
