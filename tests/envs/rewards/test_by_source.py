"""The rule reward of Reagent's pool: a rule a kind of answer, chosen by source or seen; nothing empty is right."""

import asyncio

import pytest

from palaestra import Attempt
from palaestra.envs.rewards.by_source import kind_of, rule_reward
from palaestra.envs.suite.search_qa import SearchQA

SEVEN = "one two three four five six seven"


def paid(answer, *expected, source=""):
    return asyncio.run(rule_reward(answer, expected, source))


@pytest.mark.parametrize(
    ("answer", "expected", "source", "reward"),
    [
        ("Sopa Rin", ["sopa rin."], "", 1.0),
        ("one two x y z u v", [SEVEN + " eight nine"], "hotpotqa", 0.0),  # 4/16 shared: 0.25.
        ("two eleven", [SEVEN + " eight nine ten eleven twelve"], "", 0.0),  # F1 4/14 = 0.286.
        ("two eleven", [SEVEN + " eight nine ten eleven"], "", pytest.approx(4 / 13)),  # F1 0.308 counts as it is.
        ("b c", ["x y", "b c d", "q"], "", pytest.approx(0.8)),
        ("It is yes, I think.", ["yes"], "", 1.0),
        ("yes and no", ["yes"], "", 0.0),
        ("noble", ["no"], "", 0.0),
        ("True", ["true"], "math500", 1.0),
        (r"\boxed{\frac{2}{4}}", ["0.5"], "DeepScaleR", 1.0),
        ("1/2", ["0.5"], "", 1.0),
        ("1984.0", ["1984"], "", 1.0),
        ("1984.0", ["1984"], "nq_qa", 1.0),
        ("1/2", ["0.5"], "nq_qa", 0.0),
        ("7", ["8", "7"], "aime24", 1.0),
        ("", ["x"], "", 0.0),
        (None, ["x"], "", 0.0),
        ("  ", ["yes"], "", 0.0),
        ("x", [], "", 0.0),
    ],
)  # fmt: skip
def test_f37_the_rule_of_a_source_decides(answer, expected, source, reward):
    assert paid(answer, *expected, source=source) == reward


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


def test_f37_questions_of_a_file_are_paid_by_the_rule_of_their_source(tmp_path):
    rows = '{"question": "How much?", "answer": ["0.5", "half"], "data_source": "AIME24", "split": "train"}\n'
    (tmp_path / "asked.jsonl").write_text(rows)
    search = {"backend": "retrieve", "url": "http://127.0.0.1:9/retrieve"}
    env = SearchQA("all", str(tmp_path / "asked.jsonl"), metric="rule", search=search)
    (task,) = env.read_tasks(str(tmp_path / "asked.jsonl"), "all")
    attempt = Attempt(task, (), r"Answer: \boxed{1/2}", (), 1)
    found = asyncio.run(env.reward(attempt))
    assert found["success"] == 1.0 and found["em"] == found["f1"] == 0.0
