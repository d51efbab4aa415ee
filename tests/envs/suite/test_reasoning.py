"""Reasoning: verifiers that cannot be trusted are refused, and nothing that an agent writes is run by one."""

import asyncio
import sys
import time

import pytest
import worlds

from palaestra.envs import TextEnv
from palaestra.envs.rewards import limited_processes
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


SECONDS = 60.0
"""What a verifier may take here: a busy machine needs it, and what has to be killed takes it."""


@pytest.fixture(scope="module", autouse=True)
def one_process():
    """Each takes a second or two to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limited_processes, "PROCESSES", 1)
        patch.setattr(reasoning_items._verifiers, "seconds", SECONDS)
        reasoning_items._verifiers.close()
        yield
        reasoning_items._verifiers.close()


def judged(env, task, text):
    return worlds.judged(env, Attempt(task, (), text, (), 1))[1]


def tasks(env):
    return TextEnv(env).tasks


def credit(generator, text):
    items = open_items(generator, {})
    return asyncio.run(items.judge(text, items.item(3)))


def test_an_item_is_right_by_its_own_answer_and_by_no_nonsense():
    for generator in ("number_sorting", "countdown", "n_queens", "chain_sum", "word_ladder"):
        env = Reasoning(generator=generator)
        task = tasks(env)[3]
        assert judged(env, task, f"So <answer>{task.answer}</answer>") == {"success": 1.0, "credit": 1.0}
        for text in ("<answer>zzz</answer>", "<answer></answer>", "", None, task.prompt):
            assert judged(env, task, text)["success"] == 0.0


def test_what_the_commonest_answer_wins_is_the_declared_chance():
    few, many = Reasoning(generator="syllogism"), Reasoning(generator="chain_sum")
    sure = Reasoning(generator="syllogism", config={"invalid_ratio": 1.0})
    assert 0.5 < few.chance < 0.85
    assert many.chance < 0.1
    assert sure.chance > few.chance + 0.1
    won = sum(judged(few, tasks(few)[at], "<answer>Yes</answer>")["success"] for at in range(60)) / 60
    assert abs(won - few.chance) < 0.25


def test_partial_credit_is_told_and_not_paid():
    env = Reasoning(generator="countdown")
    reward, parts = worlds.judged(env, Attempt(tasks(env)[0], (), "<answer>1 + 1</answer>", (), 1))
    assert (reward, parts["success"]) == (0.0, 0.0)
    assert 0 < parts["credit"] < 1


def test_the_configuration_reaches_the_generator():
    few, many = (Reasoning(generator="chain_sum", config={"min_terms": n, "max_terms": n}) for n in (2, 6))
    assert tasks(few)[0].prompt.count(" + ") + tasks(few)[0].prompt.count(" - ") == 1
    assert tasks(many)[0].prompt.count(" + ") + tasks(many)[0].prompt.count(" - ") == 5


def test_splits_share_no_question():
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    asked = [
        {tasks(Reasoning(split, generator="chain_sum", config=config))[index].prompt for index in range(60)}
        for split in ("train", "eval")
    ]
    assert not asked[0] & asked[1]


def test_a_denied_generator_is_refused_with_its_reason():
    for generator, reason in DENIED.items():
        with pytest.raises(UsageError, match=generator) as caught:
            Reasoning(generator=generator)
        assert reason in str(caught.value)


@pytest.mark.parametrize(("generator", "said"), [
    ("coin_flip", "gives credit to nonsense"), ("string_manipulation", "does not accept its own answer"),
    ("list_functions", "different items"), ("puzzle24", "answers of other items"),
    ("game_of_life_halting", "credit to nonsense"), ("rush_hour", "no reference answer"),
])  # fmt: skip
def test_a_generator_that_fails_the_look_at_it_is_refused_also_were_it_taken_off_the_list(generator, said):
    with pytest.raises(UsageError, match=said):
        open_items(generator, {})


def hedging(monkeypatch, reads):
    """Items whose verifier takes as the answer what this reads from a text."""
    items = reasoning_items._unchecked('["chain_sum", {}]')
    monkeypatch.setattr(items, "_dataset", items._dataset)
    monkeypatch.setattr(
        items._dataset, "score_answer", lambda answer, item: float(item["answer"] in reads(answer)), raising=False
    )
    return items


def test_a_verifier_that_finds_the_answer_among_others_is_refused(monkeypatch):
    items = hedging(monkeypatch, lambda answer: answer.replace(",", "").split())
    with pytest.raises(UsageError, match="accepts an answer among others"):
        items.check()
    first = hedging(monkeypatch, lambda answer: answer.replace(",", "").split()[:1])
    first.check()  # Whoever writes several has chosen the first.


@pytest.mark.parametrize(("options", "said"), [
    ({"generator": "cuntdown"}, "did you mean countdown"),
    ({"generator": "?"}, "expected one of ab, .*countdown, .*, zebra_puzzles"),
    ({"generator": 5}, "generator is 5; expected the name"),
    ({"config": {"max_number": 3}}, "it takes .*max_numbers"),
    ({"config": {"min_numbers": 9, "max_numbers": 3}}, "number_sorting"), ({"config": {"seed": 3}}, "'seed'"),
])  # fmt: skip
def test_wrong_options_are_said(options, said):
    with pytest.raises(UsageError, match=said):
        _ = tasks(Reasoning(**options))[0]


@pytest.mark.parametrize("generator", ["n_queens", "spiral_matrix", "string_insertion", "binary_matrix", "countdown"])
def test_what_an_agent_writes_is_never_run(generator, tmp_path):
    runs = f"__import__('os').mkdir({str(tmp_path / 'ran')!r})"
    env = Reasoning(generator=generator)
    for text in (runs, f"[{runs}]", f"1 + {runs}", f"['a', {runs}]"):
        assert judged(env, tasks(env)[0], f"<answer>{text}</answer>")["success"] == 0.0
    assert not (tmp_path / "ran").exists()
    # The verifier itself does run it, else this test would prove nothing.
    items = open_items(generator, {})
    items._dataset.score_answer(runs, items.item(0))
    assert (tmp_path / "ran").exists()


def test_honest_answers_are_harmless_and_what_could_do_something_is_not():
    for text in ("12", "(3 + 4)*5/2.5", "['1', '2']", "[[1, 0], [0, 1]]", "_ Q _\nQ _ _", "A B C", "-7", "0x1F",
                 "0x12e4567", "2.5e-3", ""):  # fmt: skip
        assert harmless(text), text
    for text in ("self", "entry", "x, y", "not self", "-answer", "9**9**9**9", "1e-999999999", "[1E99999]", "9 * * 9",
                 "f()", "().__class__", "x.y", "[f() for f in g]", "a[0]", "lambda: 1", "{**x}", "'a'*9"):  # fmt: skip
        assert not harmless(text), text


def test_what_reads_as_no_finite_number_is_worth_nothing_and_all_else_is_left_to_the_verifier():
    for text in ("nan", "NaN", "-nan", "nan+nani", "nan - 2i", "[nan]", "inf", "inf-infi", "1e999"):
        assert credit("complex_arithmetic", text) == 0.0
        assert reasoning_items.not_finite(text), text
    for text in ("12.5e3 - 2i", "nancy", "info", "0x12e4567", "in", "fin", "", "1e-999", "9" * 20_000):
        assert not reasoning_items.not_finite(text), text


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -1.0, 1.5])
def test_a_score_that_is_no_share_is_worth_nothing(score, monkeypatch):
    items = open_items("chain_sum", {})
    monkeypatch.setattr(items._dataset, "score_answer", lambda answer, item: score)
    assert items.score("1", items.item(3)) == 0.0


def test_a_bare_word_is_no_variable_of_the_verifier_and_an_endless_power_is_not_worked_out():
    begun = time.monotonic()
    for generator in ("binary_matrix", "string_insertion", "spiral_matrix", "n_queens"):
        assert [credit(generator, word) for word in ("self", "entry", "answer", "not self")] == [0.0] * 4
    assert [credit("countdown", power) for power in ("1E999999999", "1e-999999999", "[1e-99999]")] == [0.0] * 3
    assert time.monotonic() - begun < SECONDS


def test_the_reference_itself_needs_no_process(monkeypatch):
    monkeypatch.setattr(reasoning_items._verifiers, "ask", None)
    assert credit("countdown", open_items("countdown", {}).item(3)["answer"]) == 1.0


def test_a_process_that_cannot_start_is_broken_and_not_wrong(monkeypatch):
    def refuse():
        raise OSError("no more processes")

    reasoning_items._verifiers.close()
    monkeypatch.setattr(limited_processes, "WorkerProcess", refuse)
    with pytest.raises(Broken, match="no process could be started"):
        credit("countdown", "1 + 2 + 3")


def test_an_item_that_is_another_one_here_is_broken_and_not_wrong():
    env = Reasoning()
    task = tasks(env)[0]
    moved = type(task)(prompt=task.prompt + "!", answer=task.answer, id="x", data=task.data)
    with pytest.raises(Broken, match="draws another item"):
        judged(env, moved, "<answer>1</answer>")


def test_the_answer_stands_between_tags_or_behind_its_mark():
    assert answer_of("<answer>a</answer> no, <answer>\nb\nc </answer>") == "b\nc"
    assert answer_of("Answer: 7") == "7"
    assert answer_of(None) is None
    assert answer_of("<answer>\n```text\n1 2\n3 4\n```\n</answer>") == "1 2\n3 4"
    assert answer_of("<answer>```\na\n``` or ```\nb\n```</answer>").count("```") == 4, "two fences are no answer"
    assert answer_of("</answer> <answer>a</answer> <answer>") == "a"
    begun = time.thread_time()
    answer_of("<answer>" * 40_000)
    assert time.thread_time() - begun < 5, "it looks at every part of a text once"


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingExtra, match=r"palaestra\[code\]"):
        tasks(Reasoning())[0]
