"""The rule reward of Reagent's pool: a rule a kind of answer, chosen by source or seen; nothing empty is right."""

import asyncio

import pytest

from palaestra.envs.rewards.by_source import kind_of, rule_reward

SEVEN = "one two three four five six seven"


def paid(answer, *expected, source=""):
    return asyncio.run(rule_reward(answer, expected, source))


NO_SIDE = (
    "not sure, no idea", "There is no way to know.", "no evidence, not true", "not false", "No answer.", "yes-no",
    "no or yes", "yes, no", "first true, then false. yes. no", "It is not no.", "untrue",
    "no one knows, it is true of no one", "yes,no", "no.yes", "true;false", "false\u2014true", "(yes)no", "yes\nno:",
)  # fmt: skip
SIDES = (
    "{}", "{}.", "**{}**", "{}, because there is one", "The answer is {}.", "So it's {}!", "My final answer: {}",
    "{} - they were born in 1984", "(It is {})", "{}\u2014both are", "I read both pages. This statement is {}.",
)  # fmt: skip
WHETHER = ("yes", "no", "true", "false")


@pytest.mark.parametrize("answer", NO_SIDE)
@pytest.mark.parametrize("expected", WHETHER)
def test_f37_an_answer_that_takes_no_side_is_not_yes_no_true_or_false(answer, expected):
    assert paid(answer, expected) == 0.0


@pytest.mark.parametrize("answer", SIDES)
@pytest.mark.parametrize("expected", WHETHER)
def test_f37_an_answer_that_takes_a_side_is_right_for_it_alone(answer, expected):
    for side in WHETHER:
        assert paid(answer.format(side.capitalize()), expected) == float(side == expected)


def test_f37_a_kind_is_named_by_the_source_or_seen():
    assert [kind_of(["12"], "HotpotQA"), kind_of(["Paris"], "gsm8k"), kind_of(["12"]), kind_of(["Paris"])] == [
        "words", "math", "math", "words",
    ]  # fmt: skip
