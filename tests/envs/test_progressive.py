"""StagedReward: the three promises for any stages, weights and thresholds, and how an environment uses it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra import Attempt, Call, EnvironmentDefect, Status, Task
from palaestra.envs import RewardPart, TextEnv, ToolEnv, tool
from palaestra.envs.core.scoring import score
from palaestra.envs.records.rescore import find_scorer
from palaestra.envs.rewards.progressive import RewardStage, StagedReward, marked_answer, parsed_calls, valid_calls

STEPS = 20
"""Scores lie on a grid, so that a difference between two is more than rounding."""


def attempt(answer="", calls=(), task=None):
    return Attempt(task or Task("?", answer="x"), (), answer, tuple(calls), 1)


def progressive(weights, thresholds):
    """Stages whose scores are spelled out in the task."""
    last = len(weights) - 1
    stages = [
        RewardStage(
            "success" if at == last else f"stage{at}", lambda found, at=at: found.task.data["scores"][at], weight, theta
        )
        for at, (weight, theta) in enumerate(zip(weights, thresholds, strict=True))
    ]
    return StagedReward(*stages)


def total(reward, scores):
    found = attempt(task=Task("?", data={"scores": scores}))
    return score("Test", reward.parts, reward(found))[0]


def cleared(scores, thresholds):
    """How many stages in a row are cleared."""
    passed = [one >= theta for one, theta in zip(scores, thresholds, strict=True)]
    return passed.index(False) if False in passed else len(passed)


grid = st.integers(0, STEPS).map(lambda number: number / STEPS)


@st.composite
def two_attempts(draw):
    """Weights and thresholds of stages, and the scores of two attempts."""
    count = draw(st.integers(1, 5))
    scores = st.lists(grid, min_size=count, max_size=count)
    weights = draw(st.lists(st.floats(0.01, 10), min_size=count, max_size=count))
    thresholds = draw(st.just([1.0] * count) | scores.map(lambda found: [max(one, 1 / STEPS) for one in found]))
    return weights, thresholds, draw(scores), draw(scores)


@given(two_attempts(), st.integers(0, 4), st.integers(1, STEPS))
def test_f39_stuck_at_a_stage_is_less_than_any_that_clears_it(drawn, place, missing):
    weights, thresholds, stuck, clears = drawn
    place %= len(weights)
    for at in range(place + 1):
        stuck[at], clears[at] = max(stuck[at], thresholds[at]), max(clears[at], thresholds[at])
    stuck[place] = max(0.0, thresholds[place] - missing / STEPS)
    assert cleared(stuck, thresholds) == place < cleared(clears, thresholds)
    reward = progressive(weights, thresholds)
    assert total(reward, stuck) < total(reward, clears)


@given(two_attempts(), st.integers(0, 4))
def test_f39_clearing_a_stage_or_doing_better_at_any_never_lowers_the_reward(drawn, place):
    weights, thresholds, scores, other = drawn
    reward, place = progressive(weights, thresholds), place % len(weights)
    better = list(scores)
    better[place] = max(scores[place], other[place])
    assert total(reward, better) >= total(reward, scores)
    first = cleared(scores, thresholds)
    if first < len(scores):
        better = list(scores)
        better[first] = max(scores[first], thresholds[first])
        assert total(reward, better) > total(reward, scores)


@given(two_attempts())
def test_f39_only_perfect_stages_give_the_full_reward_and_with_thresholds_of_one_it_is_the_gated_sum(drawn):
    weights, thresholds, scores, _ = drawn
    reward = progressive(weights, thresholds)
    full = total(reward, [1.0] * len(weights))
    assert full == pytest.approx(sum(weights))
    assert (total(reward, scores) == full) == (scores == [1.0] * len(weights))
    gate, expected = 1.0, 0.0
    for weight, one in zip(weights, scores, strict=True):
        expected += weight * gate * one
        gate *= one >= 1.0
    assert total(progressive(weights, [1.0] * len(weights)), scores) == pytest.approx(expected)


def test_worked_numbers():
    reward = progressive((0.1, 0.1, 0.1, 0.7), (0.6, 0.7, 1.0, 1.0))
    assert total(reward, (0.5, 1, 1, 1)) == pytest.approx(0.05)
    assert total(reward, (1, 0.65, 1, 1)) == pytest.approx(0.06 + 0.065)
    assert total(reward, (0.6, 0.7, 0.0, 1)) == pytest.approx(0.06 + 0.07)
    assert total(reward, (1, 1, 1, 0.5)) == pytest.approx(0.06 + 0.07 + 0.1 + 0.35)
    assert total(reward, (0.8, 0.7, 1, 1)) == pytest.approx(0.08 + 0.07 + 0.1 + 0.7)


def test_the_parts_are_the_stages_and_one_is_measured_only_when_those_before_it_are_cleared():
    asked = []

    def judge(found):
        asked.append(found.answer)
        return 1.0

    form = RewardStage("format", lambda found: len(found.answer) / 4, 0.2, 0.75)
    reward = StagedReward(form, RewardStage("success", judge, 0.8))
    assert dict(reward.parts) == {"format": RewardPart(weight=0.2), "success": RewardPart(weight=0.8)}
    assert score("Test", reward.parts, reward(attempt("ab"))) == (0.1, {"format": 0.5, "success": 0.0})
    assert asked == []
    reward(attempt("abc"))
    assert asked == ["abc"]


def test_a_score_that_misses_its_threshold_by_rounding_alone_clears_it():
    tenths = sum([0.1] * 10)
    assert tenths < 1
    reward = StagedReward(
        RewardStage("format", lambda found: tenths, 0.5), RewardStage("success", lambda found: 1.0, 0.5)
    )
    assert reward(attempt()) == {"format": 1.0, "success": 1.0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: StagedReward(), "the last stage of StagedReward is 'missing'"),
        (lambda: StagedReward(RewardStage("quality", len, 1.0)), "put it last"),
        (
            lambda: StagedReward(RewardStage("success", len, 1.0), RewardStage("success", len, 1.0)),
            "two stages named 'success'",
        ),
        (lambda: RewardStage("a", len, 0.0), "positive"),
        (lambda: RewardStage("a", len, math.nan), "positive"),
        (lambda: RewardStage("a", len, "1"), "has weight '1'; expected a positive"),
        (lambda: RewardStage("a", len, 1.0, "1"), "has threshold '1'; expected a number"),
        (lambda: RewardStage("a", len, 1.0, 0.0), "above 0"),
        (lambda: RewardStage("a", len, 1.0, 1.5), "at most 1"),
        (lambda: RewardStage("a", 0.5, 1.0), "expected a function"),
    ],
)
def test_stages_that_could_not_keep_the_promises_are_refused(make, said):
    with pytest.raises(EnvironmentDefect, match=said):
        make()


def test_a_measure_that_is_no_share_names_its_stage():
    async def later():
        return 1.0

    for value in (math.nan, math.inf, -0.5, 1.5, None, "1", "high"):
        with pytest.raises(EnvironmentDefect, match="stage 'success' measured"):
            StagedReward(RewardStage("success", lambda found, value=value: value, 1.0))(attempt())
    with pytest.raises(EnvironmentDefect, match="async def"):
        StagedReward(RewardStage("success", lambda found: later(), 1.0))(attempt())


def call(name, status=Status.OK):
    return Call(name, {}, "", status)


def test_ready_made_measures():
    calls = [call("add"), call("add", Status.BAD_CALL), call("", Status.BAD_CALL), call("add", Status.TOOL_ERROR)]
    assert parsed_calls(attempt(calls=calls)) == 0.75
    assert valid_calls(attempt(calls=calls)) == 0.5
    assert parsed_calls(attempt()) == valid_calls(attempt()) == 1.0
    assert parsed_calls(attempt(), required=True) == valid_calls(attempt(), required=True) == 0.0
    answers = ("Answer: 3", "3", "Answer: 3 Answer: 4", "", None)
    assert [marked_answer(attempt(answer)) for answer in answers] == [1, 0, 0, 0, 0]


# In an environment.


class Staged(ToolEnv):
    """Its reward is a StagedReward."""

    def task(self, rng):
        return Task(f"What is {rng.integers(10**6)} + 1?", answer="2")

    @tool
    def add(self, a: int) -> int:
        return a + 1

    reward = StagedReward(
        RewardStage("valid", valid_calls, 0.2),
        RewardStage("success", lambda found: float(found.answer == f"Answer: {found.task.answer}"), 0.8),
    )


async def half(found):
    return 0.5


class Judged(Staged):
    """A judge is asked in its last stage."""

    reward = StagedReward(RewardStage("valid", valid_calls, 0.2), RewardStage("success", half, 0.8))


def test_an_environment_declares_the_stages_by_its_reward_alone_and_may_ask_a_judge():
    for kind, called, total_of, parts in (
        (Staged, ("add", "nobody"), 0.1, {"valid": 0.5, "success": 0.0}),
        (Staged, ("add",), 1.0, {"valid": 1.0, "success": 1.0}),
        (Judged, ("add",), 0.6, {"valid": 1.0, "success": 0.5}),
    ):
        env = TextEnv(kind())
        env.reset(seed=1)
        env.step("".join(env.call(name, **({"a": 1} if name == "add" else {})) for name in called))
        _, reward, terminated, _, info = env.step("Answer: 2")
        assert (reward, terminated, info["parts"]) == (pytest.approx(total_of), True, parts)


def test_recorded_attempts_are_rescored_with_the_weights_of_the_stages():
    reward, parts = find_scorer(f"{__name__}:REWARD")(attempt("Answer: x"))
    assert (reward, parts) == (1.0, {"valid": 1.0, "success": 1.0})


REWARD = Staged.reward
