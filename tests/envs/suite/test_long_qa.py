"""LongQA: an answer has to cover every question and contradict nothing; a judge may say so in place of the facts."""

import json
import time

import pytest
from demonstrated import play
from fake_server import replying, said
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.envs import TextEnv
from palaestra.envs.suite.long_qa import LongQA, demonstrate
from palaestra.envs.suite.long_qa_world import KINDS, claims, draw_service, message_of, questions_in, sentences_of
from palaestra.errors import TaskFileError, UsageError

ENV = TextEnv(LongQA("eval", size=60))
ANY = st.integers(0, 40)
PADDING = st.lists(st.sampled_from(["Thank", "you", "so", "much.", "We", "are", "glad", "the"]), max_size=60)


def answered(answer, task=0, env=ENV):
    """What an answer is given for a task: the parts, or None for a broken episode."""
    env.reset(seed=0, options={"task": task})
    *_, info = env.step(answer)
    return None if info["ending"] == "broken" else info["parts"]


def facts(task=0):
    return [tuple(fact) for fact in ENV.tasks[task].data["facts"]]


def test_the_demonstrator_finds_every_answer_with_a_search_a_question():
    for task in range(20):
        info = play(ENV, demonstrate, task=task)
        assert info["parts"] == {"success": 1.0, "quality": 1.0}
        assert len(info["attempt"].calls) == len(facts(task)) in (2, 3, 4)
        assert [(kind.name, product) for kind, product in questions_in(message_of(facts(task)))] == [
            one[:2] for one in facts(task)
        ]


@settings(max_examples=25)
@given(ANY, st.integers(0, 3), st.integers(0, 10_000))
def test_f41_one_contradiction_is_fatal_though_all_else_is_right_and_fluent(task, at, seed):
    kind, product, value = facts(task)[at % len(facts(task))]
    known = next(one for one in KINDS if one.name == kind)
    others = known.words or [f"{number} {known.unit}s" for number in range(2, 400)]
    wrong = next(one for one in [*others[seed % len(others) :], *others] if one != value)
    said_wrong = sentences_of([(kind, product, wrong) if one[0] == kind else one for one in facts(task)])
    fluent = f"Dear customer, {said_wrong} I am glad to help!"
    assert answered(fluent, task) == {"success": 0.0, "quality": 0.0}
    assert answered(f"{ENV.tasks[task].answer} Or is it {wrong}?", task)["quality"] == 0.0


@settings(max_examples=25)
@given(ANY, PADDING, PADDING)
def test_f41_padding_gains_nothing(task, before, after):
    right = ENV.tasks[task].answer
    for answer in (right, sentences_of(facts(task)[:1])):
        padded = answered(" ".join([*before, answer, *after]), task)
        assert padded["quality"] <= answered(answer, task)["quality"]
    assert answered(f"{right} " + "and so on " * 100, task)["quality"] < 0.2


def test_what_is_left_out_or_added_costs_its_share():
    task = next(task for task in range(40) if len(facts(task)) == 4)
    assert [
        answered(sentences_of(facts(task)[:count]) or "Hello!", task)["quality"] for count in range(5)
    ] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
    product = facts(task)[0][1]
    free = [kind for kind in KINDS if kind.name not in {one[0] for one in facts(task)}]
    known = draw_service(60, 0).facts[product]
    right = ENV.tasks[task].answer
    assert answered(f"{right} {sentences_of([(free[0].name, product, known[free[0].name])])}", task)["success"] == 1.0
    unknown = [f"{9999} {kind.unit}s" for kind in free if kind.unit]
    assert answered(f"{right} {unknown[0]}", task) == {"success": 0.0, "quality": pytest.approx(0.5)}
    if len(unknown) > 1:
        assert answered(f"{right} {unknown[0]} {unknown[1]}", task)["quality"] == 0.0


def test_every_number_of_a_hedge_is_claimed():
    months = {("warranty", "12 months"), ("warranty", "24 months")}
    for text in (
        "12 or 24 months",
        "12-24 months",
        "between 12 and 24 months",
        "12/24 months",
        "12 months or 24 months",
    ):
        assert claims(f"The warranty is {text}.") == months
    assert claims("6, 12 or 24 months") == {*months, ("warranty", "6 months")}
    assert claims("a 24-month warranty, 1,200 grams, 24.0 months, at the MILLPOND depot") == {
        ("warranty", "24 months"), ("weight", "1200 grams"), ("depot", "the Millpond depot"),
    }  # fmt: skip
    for text in ("9" * 5000, "9, " * 5000, "9." * 5000, "9 or " * 5000, "-" * 5000, " " * 5000):
        began = time.process_time()
        assert claims(f"{text} crowns 1.2.3 hours") is not None
        assert time.process_time() - began < 2, text[:10]


# With a judge.


def judged(reply, answer="24 months", **options):
    with replying(said(reply)) as server:
        judge = {"base_url": server.url, "model": "m", "api_key_env": "", "tries": 2, **options.pop("judge", {})}
        env = TextEnv(LongQA("eval", size=60, judge=judge, **options))
        return answered(answer, env=env), server.questions


def test_f42_the_same_environment_is_judged_by_marks_or_by_a_label():
    perfect = json.dumps({"agreement": 2, "coverage": 2, "support": 2, "fatal": False})
    parts, asked = judged(perfect)
    assert parts == {"success": 1.0, "quality": 1.0}
    shown = asked[0]["messages"][1]["content"]
    assert ENV.tasks[0].prompt in shown and ENV.tasks[0].answer in shown and "eval" not in shown
    assert judged(perfect.replace('"coverage": 2', '"coverage": 1'))[0]["quality"] == pytest.approx(5 / 6)
    label = {"judge": {"backend": "label"}}
    assert [judged(word, **label)[0]["success"] for word in ("Match", "Mismatch")] == [1.0, 0.0]
    mixed = judged("Match", ENV.tasks[0].answer + " Yes.", bleu_share=0.5, **label)[0]["quality"]
    assert 0.5 < mixed < 1.0
    assert judged("Mismatch", ENV.tasks[0].answer, bleu_share=0.5, **label)[0]["quality"] == 0.0


def test_f41_a_judge_that_likes_length_is_no_help_to_padding():
    label = {"judge": {"backend": "label"}}
    assert judged("Match", "24 months " * 200, **label)[0]["quality"] < 0.1


def test_padding_is_no_success_whether_facts_or_a_judge_say_that_the_answer_is_right():
    right, label = ENV.tasks[0].answer, {"judge": {"backend": "label"}}
    padded = f"{right} " + "Customers call it reliable and like it. " * 30
    polite = f"Dear customer, {right} I am glad to help!"
    assert [answered(answer)["success"] for answer in (right, polite, padded)] == [1.0, 1.0, 0.0]
    assert [judged("Match", answer, **label)[0]["success"] for answer in (polite, padded)] == [1.0, 0.0]
    assert "too long" in ENV.machine.spec.author.explain(ENV.attempt)
    for joined in ("It-is-reliable-" * 700, "reliable_" * 1200, "." * 10_000, "\u200b" * 10_000):
        parts = answered(f"{right} {joined}")
        assert parts["success"] == 0.0
        assert parts["quality"] < 0.1
    short = LongQA("eval", size=60, verbosity=1.0)  # A full sentence repeats the question, and is not padding.
    assert answered(f"{ENV.tasks[0].prompt} {right}", env=TextEnv(short))["success"] == 1.0


def test_an_answer_of_which_the_judge_saw_a_part_is_no_success():
    label, short = {"judge": {"backend": "label"}, "verbosity": 1000.0}, ENV.tasks[0].answer
    letters = "x" * (12_000 - len(short) - 1)
    assert judged("Match", f"{short} {letters}", **label)[0]["success"] == 1.0
    assert judged("Match", f"{short} {letters} no", **label)[0]["success"] == 0.0


def test_a_file_of_questions_and_references_is_read_and_needs_a_judge(tmp_path):
    path = tmp_path / "dialogues.jsonl"
    rows = [{"question": f"How is number {n}? And why?", "references": [f"It is {n}.", "So."]} for n in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    judge = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": ""}
    found = TextEnv(LongQA("all", str(path), judge=judge)).tasks
    assert len(found) == 20 and found[0].answer == ["It is 0.", "So."]
    with pytest.raises(UsageError, match="needs a judge"):
        len(TextEnv(LongQA("all", str(path))).tasks)
    path.write_text(json.dumps({"question": "Why?", "reference": " "}))
    with pytest.raises(TaskFileError, match="has no reference"):
        len(TextEnv(LongQA("all", str(path), judge=judge)).tasks)
    own = {"prompt": "?", "answer": "x", "facts": [["price", "the Teza lamp", "3 crowns"]], "world": ["service", 60, 0]}
    for changes, fault in (({}, "not in the knowledge base"), ({"world": ["full", 9, 0]}, "is about the service")):
        path.write_text(json.dumps(own | changes))
        with pytest.raises(TaskFileError, match=fault):
            len(TextEnv(LongQA("all", str(path), size=60)).tasks)
