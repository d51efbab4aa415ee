"""What a person is told of a reward: by whom, of what, and never within an episode."""

import asyncio
from contextlib import closing

import gymnasium
import pytest
from worlds import explained

import palaestra
from palaestra import Attempt, Call, Start, Status, Task
from palaestra.envs import ToolEnv
from palaestra.envs.records.rescore import find_scorer
from palaestra.envs.rewards.answer import MAX_SHOWN, reading
from palaestra.envs.rewards.mathematics import rule
from palaestra.envs.rewards.progressive import RewardStage, StagedReward, valid_calls

ID = "palaestra/TwoHop-v0"
STAGED = (
    RewardStage("valid", valid_calls, weight=0.2, threshold=0.9),
    RewardStage("short", lambda attempt: float(len(attempt.answer or "") < 9), weight=0.2),
    RewardStage("success", lambda attempt: float(attempt.answer == "x"), weight=0.6),
)


def attempt(answer, good=1, bad=0):
    calls = [Call("go", {}, "", Status.OK)] * good + [Call("go", {}, "", Status.BAD_CALL)] * bad
    return Attempt(Task("?", answer="x"), (), answer, tuple(calls), 1)


async def judged(attempt):
    return 1.0


@pytest.mark.parametrize("stages", [STAGED, (STAGED[0], RewardStage("short", judged, weight=0.2), STAGED[2])])
def test_stages_that_were_not_reached_are_told_apart_from_those_that_got_nothing(stages):
    class Staged(ToolEnv):
        reward = StagedReward(*stages)

    env = Staged()
    told = explained(env, attempt("x", good=7, bad=1))
    assert told == "not reached: short, success, since valid is 0.875 and needs 0.9"
    assert explained(env, attempt("wrong", good=9, bad=1)) == "", "the last stage was reached, and got 0"
    assert explained(env, attempt("x")) == ""


def test_a_stage_in_the_middle_that_is_not_cleared_is_named():
    told = asyncio.run(StagedReward(*STAGED).explain(attempt("much too long")))
    assert told == "not reached: success, since short is 0 and needs 1"


def test_an_environment_that_explains_nothing_has_nothing_to_say():
    class Plain(ToolEnv):
        def reward(self, attempt):
            return 0.0

    assert Plain().explain(attempt("x")) == ""


def test_no_episode_asks_for_an_explanation(monkeypatch):
    asked = []
    monkeypatch.setattr(ToolEnv, "explain", lambda self, attempt: asked.append(attempt) or "")
    env = gymnasium.make(ID).unwrapped
    env.reset(seed=0)
    *_, info = env.step("wrong")
    with closing(palaestra.arena(ID, 2)) as arena:
        arena.begin(0, Start(0, 0))
        arena.recv(1, 60.0)
        arena.send({0: "wrong"})
        assert arena.recv(1, 60.0)[0].reward == 0.0
    find_scorer(ID)(info["attempt"])
    assert asked == []


def test_what_was_read_is_told_quoted_and_no_longer_than_a_person_reads():
    assert reading("1\n\x1b[2J", "the box", "compared") == r"read '1\n\x1b[2J' from the box; compared"
    assert reading(None, "the box", "compared") == "nothing can be read from the box"
    assert len(reading("x" * 10**6, "", "")) < MAX_SHOWN + 50


@pytest.mark.parametrize(("found", "expected", "by"), [
    ("2", "2", "text"), ("0.5", r"\frac{1}{2}", "text"), ("3", "2", "text"), (r"\binom{4}{2}", "6", "text"),
    (r"2\sqrt{2}", r"\sqrt{8}", "math-verify"), ("x+1", ["y", "1+x"], "math-verify"), ("1+x", ["2x", "1+x"], "text"),
])  # fmt: skip
def test_the_comparison_that_decides_is_named(found, expected, by):
    assert by in rule(found, expected)
