"""Reasoning: verifiers that cannot be trusted are refused, and nothing that an agent writes is run by one."""

import sys

import pytest

from palaestra.envs.suite import reasoning_items
from palaestra.envs.suite.reasoning import Reasoning, answer_of
from palaestra.envs.suite.reasoning_items import DENIED, harmless, open_items
from palaestra.episode import Attempt
from palaestra.errors import Broken, MissingExtra, UsageError


@pytest.fixture(autouse=True)
def opened_anew():
    reasoning_items._opened.cache_clear()
    yield
    reasoning_items._opened.cache_clear()


def judged(env, task, text):
    return env.judge(Attempt(task, (), text, (), 1))[1]


def test_an_item_is_right_by_its_own_answer_and_by_no_nonsense():
    for generator in ("number_sorting", "countdown", "n_queens", "chain_sum", "word_ladder"):
        env = Reasoning(generator=generator)
        task = env.tasks[3]
        assert judged(env, task, f"So <answer>{task.answer}</answer>") == {"success": 1.0, "credit": 1.0}
        for text in ("<answer>zzz</answer>", "<answer></answer>", "", None, task.prompt):
            assert judged(env, task, text)["success"] == 0.0


def test_partial_credit_is_told_and_not_paid():
    env = Reasoning(generator="countdown")
    reward, parts = env.judge(Attempt(env.tasks[0], (), "<answer>1 + 1</answer>", (), 1))
    assert (reward, parts["success"]) == (0.0, 0.0)
    assert 0 < parts["credit"] < 1


def test_the_configuration_reaches_the_generator():
    few, many = (Reasoning(generator="chain_sum", config={"min_terms": n, "max_terms": n}) for n in (2, 6))
    assert few.tasks[0].prompt.count(" + ") + few.tasks[0].prompt.count(" - ") == 1
    assert many.tasks[0].prompt.count(" + ") + many.tasks[0].prompt.count(" - ") == 5


def test_splits_share_no_question():
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    asked = [
        {Reasoning(split, generator="chain_sum", config=config).tasks[index].prompt for index in range(60)}
        for split in ("train", "eval")
    ]
    assert not asked[0] & asked[1]


@pytest.mark.parametrize("generator", sorted(DENIED))
def test_a_denied_generator_is_refused_with_its_reason(generator):
    with pytest.raises(UsageError, match=generator) as caught:
        Reasoning(generator=generator)
    assert DENIED[generator] in str(caught.value)


@pytest.mark.parametrize(
    ("generator", "said"),
    [
        ("coin_flip", "gives credit to nonsense"),
        ("string_manipulation", "does not accept its own answer"),
        ("list_functions", "different items"),
    ],
)
def test_a_generator_that_fails_the_look_at_it_is_refused(generator, said):
    with pytest.raises(UsageError, match=said):
        _ = Reasoning(generator=generator).tasks[0]


def test_the_look_at_a_generator_finds_what_the_list_holds():
    """Were a denied one taken off the list, its faults would still be found."""
    with pytest.raises(UsageError, match="answers of other items"):
        open_items("puzzle24", {})
    with pytest.raises(UsageError, match="credit to nonsense"):
        open_items("game_of_life_halting", {})
    with pytest.raises(UsageError, match="no reference answer"):
        open_items("rush_hour", {})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"generator": "cuntdown"}, "did you mean countdown"),
        ({"config": {"max_number": 3}}, "it takes .*max_numbers"),
        ({"config": {"min_numbers": 9, "max_numbers": 3}}, "number_sorting"),
        ({"config": {"seed": 3}}, "'seed'"),
    ],
)
def test_wrong_options_are_said(options, said):
    with pytest.raises(UsageError, match=said):
        _ = Reasoning(**options).tasks[0]


RUNS = "__import__('os').mkdir('ran')"
"""An expression with an effect."""


@pytest.mark.parametrize("generator", ["n_queens", "spiral_matrix", "string_insertion", "binary_matrix", "countdown"])
def test_what_an_agent_writes_is_never_run(generator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = Reasoning(generator=generator)
    for text in (RUNS, f"[{RUNS}]", f"1 + {RUNS}", f"['a', {RUNS}]"):
        assert judged(env, env.tasks[0], f"<answer>{text}</answer>")["success"] == 0.0
    assert not (tmp_path / "ran").exists()
    # The verifier itself does run it, else this test would prove nothing.
    items = open_items(generator, {})
    items._dataset.score_answer(RUNS, items.item(0))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "text", ["12", "(3 + 4)*5/2.5", "['1', '2']", "[[1, 0], [0, 1]]", "_ Q _\nQ _ _", "x, y", "-7", ""]
)
def test_honest_answers_are_harmless(text):
    assert harmless(text)


@pytest.mark.parametrize(
    "text",
    ["9**9**9**9", "9 * * 9", "f()", "().__class__", "x.y", "[f() for f in g]", "a[0]", "lambda: 1", "{**x}", "'a'*9"],
)
def test_what_could_do_something_is_not(text):
    assert not harmless(text)


def test_an_item_that_is_another_one_here_is_broken_and_not_wrong():
    env = Reasoning()
    task = env.tasks[0]
    moved = type(task)(prompt=task.prompt + "!", answer=task.answer, id="x", data=task.data)
    with pytest.raises(Broken, match="draws another item"):
        judged(env, moved, "<answer>1</answer>")


def test_the_answer_stands_between_tags_or_behind_its_mark():
    assert answer_of("<answer>a</answer> no, <answer>\nb\nc </answer>") == "b\nc"
    assert answer_of("Answer: 7") == "7"
    assert answer_of(None) is None


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    tasks = Reasoning().tasks
    with pytest.raises(MissingExtra, match=r"palaestra\[code\]"):
        _ = tasks[0]
