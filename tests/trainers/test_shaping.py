"""What training adds to an environment's reward, against the paper's own values."""

from dataclasses import replace

import families
import pytest

from palaestra import Status
from palaestra.trainers.config.recipes import find_recipe
from palaestra.trainers.reward.terms import response_length

TCR, T = find_recipe("grpo-tcr").shaping, find_recipe("grpo-t").shaping


def terms(reward, statuses, *, shaping=TCR, said=(5,)):
    return shaping(families.an_episode(families.token_row(4, list(said)), reward=reward, calls=statuses))


@pytest.mark.parametrize("status", [Status.BAD_CALL, Status.TOOL_ERROR, Status.BROKEN])
def test_calls_that_did_not_work_earn_nothing(status):
    assert terms(0.0, [status] * 4)["tool_bonus"] == 0
    assert terms(0.0, [status, Status.OK])["tool_bonus"] == pytest.approx(0.1)


def test_an_answer_that_is_half_right_gets_no_bonus():
    """Outcome 0 is not negative: as in the released code."""
    assert sum(terms(0.5, [Status.OK] * 4).values()) == 0


def test_the_bonus_never_lowers_an_outcome():
    for outcome in (-1.0, -0.9, -0.6, -0.5, -0.1):
        for calls in range(12):
            assert TCR.bonus(outcome, calls) >= 0
            assert outcome + TCR.bonus(outcome, calls) <= max(-0.6, outcome) + 1e-12


def test_the_overlong_penalty_shrinks_in_proportion():
    short = replace(TCR, max_completion_length=256)
    assert [terms(1.0, [], shaping=short, said=(said,))["overlong"] for said in (205, 256)] == [0, -1]
    assert terms(1.0, [], shaping=short, said=(206,))["overlong"] == pytest.approx(-1 / 51)
    assert terms(1.0, [], shaping=replace(TCR, max_completion_length=2), said=(2,))["overlong"] == -1


def test_a_response_counts_tool_results_but_not_the_prompt():
    assert response_length(families.an_episode(families.token_row(7, [3, 4], reply=5))) == 12
    rewritten = families.an_episode(families.token_row(7, [3]), families.token_row(15, [4]))
    assert response_length(rewritten) == 12
    assert response_length(families.an_episode()) == 0
    assert response_length(families.an_episode(families.token_row(7, []))) == 0


def test_a_broken_episode_is_never_shaped():
    with pytest.raises(AssertionError):
        TCR(families.an_episode(reward=None))
