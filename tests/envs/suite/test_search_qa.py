"""SearchQA: every question has one answer, which searching finds and guessing does not; published files are read."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import worlds
from demonstrated import play

from palaestra.envs import TextEnv
from palaestra.envs.suite.search_qa import SearchQA, demonstrate, index_of
from palaestra.envs.suite.search_qa_questions import KINDS, Lookup, draw_question, plan_for
from palaestra.envs.suite.search_qa_world import RELATIONS, draw_world
from palaestra.episode import Attempt, Task
from palaestra.errors import TaskFileError, UsageError

SMALL = {"size": 300}


@pytest.mark.parametrize("world", ["full", "plain"])
def test_searching_finds_every_answer_and_guessing_does_not(world):
    env, guess = TextEnv(SearchQA("eval", world=world, hops=4, **SMALL)), partial(demonstrate, tool_rate=0.0)
    for index in range(40):
        info = play(env, demonstrate, task=index)
        assert info["parts"]["success"] == 1.0
        assert len(info["attempt"].calls) == env.tasks[index].data["hops"]
    assert (
        sum(play(env, guess, index, task=index)["parts"]["success"] for index in range(100)) / 100
        <= env.author.chance + 0.08
    )
    assert {env.tasks[index].data["kind"] for index in range(40)} == set(KINDS)


def test_of_comparisons_half_are_yes_and_the_order_of_two_names_says_nothing():
    rng, world = np.random.default_rng(0), draw_world("full", 300)
    drawn = [draw_question(world, "comparison", 2, rng) for _ in range(400)]
    whether = [one.answers[0] == "yes" for one in drawn if one.answers[0] in ("yes", "no")]
    first = [one.prompt.index(one.answers[0]) < len(one.prompt) / 2 for one in drawn if one.answers[0] in one.prompt]
    assert 0.38 < np.mean(whether) < 0.62
    assert 0.38 < np.mean(first) < 0.62
    assert min(len(whether), len(first)) > 120


def test_passages_quote_errors_and_the_truth_stands_elsewhere():
    """Who copies the first sentence that fits is wrong where a chronicle erred."""
    world = draw_world("full", 300)
    documents = {one.title: one.text for one in world.documents()}
    assert len(world.errors) > 30
    things = {one.name: one for one in world.everything}
    for name, (relation, wrong) in world.errors.items():
        title = name.removeprefix("the ")
        error, truth = documents[f"Errors about {title}"], documents[title]
        known = next(one for one in RELATIONS if one.name == relation)
        assert wrong in error
        lookup = Lookup(known.sentence, known.query)
        assert lookup.value_in(name, f"{error} {truth}") == things[name].facts[relation].name != wrong


def test_a_problem_is_asked_in_one_form_and_stands_in_one_split():
    prompts = [{task.prompt for task in TextEnv(SearchQA(split, **SMALL)).tasks[:300]} for split in ("train", "eval")]
    assert not prompts[0] & prompts[1]
    rng, world = np.random.default_rng(1), draw_world("full", 300)
    facts = {}
    for _ in range(300):
        drawn = draw_question(world, "bridge", 3, rng)
        plan = plan_for(drawn.prompt)
        assert facts.setdefault((plan.subjects, plan.lookups), drawn.prompt) == drawn.prompt


def test_two_processes_have_the_same_passages_and_questions():
    program = (
        "from palaestra.envs import TextEnv; from palaestra.envs.suite.search_qa import SearchQA\n"
        "from palaestra.envs.suite.search_qa_world import draw_world\n"
        "print([one.text for one in draw_world('full', 300, 1).documents()])\n"
        "print([task.prompt for task in TextEnv(SearchQA(size=300, world_seed=1)).tasks[:20]])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    here = [one.text for one in draw_world("full", 300, 1).documents()]
    asked = [task.prompt for task in TextEnv(SearchQA(size=300, world_seed=1)).tasks[:20]]
    assert ran.stdout == f"{here}\n{asked}\n"
    assert [one.text for one in draw_world("full", 300, 2).documents()] != here


def test_one_index_serves_all_environments_of_a_process():
    environments = [TextEnv(SearchQA(**SMALL)) for _ in range(3)]
    before = index_of.cache_info().currsize
    for number, env in enumerate(environments):
        env.reset(seed=number)
        env.step('<tool_call>{"name": "search", "arguments": {"query": "born"}}</tool_call>')
    assert index_of.cache_info().currsize <= before + 1


def test_a_branch_searches_on_without_changing_the_other():
    env = TextEnv(SearchQA(**SMALL))
    env.reset(seed=0)
    search = '<tool_call>{"name": "search", "arguments": {"query": "river", "topn": 1}}</tool_call>'
    env.step(search)
    kept = env.snapshot()
    again = '<tool_call>{"name": "search", "arguments": {"query": "mayor", "topn": 1}}</tool_call>'
    texts = [env.step(again)[0]]
    env.step(search.replace("river", "born"))
    env.restore(kept)
    texts.append(env.step(again)[0])
    assert texts[0] == texts[1]
    assert "[2]" in texts[0]


EXPECTED = Task("Who?", "Niku Vera", "x", {"aliases": ["Tola"]})


@pytest.mark.parametrize(("text", "em", "f1"), [
    ("Answer: niku vera.", 1.0, 1.0), ("Answer: the Tola", 1.0, 1.0), ("Answer: Niku", 0.0, 2 / 3),
    ("Answer: Niku Vera or Sopa Rin", 0.0, 4 / 7), ("", 0.0, 0.0), (None, 0.0, 0.0),
])  # fmt: skip
def test_success_is_the_metric_that_was_asked_for_and_both_are_reported(text, em, f1):
    for metric, success in (("em", em), ("f1", f1)):
        total, parts = worlds.judged(SearchQA(metric=metric), Attempt(EXPECTED, (), text, (), 1))
        assert total == parts["success"] == pytest.approx(success)
        assert (parts["em"], parts["f1"]) == (em, pytest.approx(f1))


PUBLISHED = {
    "flashrag": {"id": "test_0", "question": "who sang it", "golden_answers": ["Abba", "ABBA (band)"]},
    "search_r1": {"question": "who sang it", "golden_answers": ["Abba", "ABBA (band)"], "prompt": [
        {"role": "user", "content": "Use <search>. Question: who sang it"}]},
    "nq_open": {"question": "who sang it", "answer": ["Abba", "ABBA (band)"]},
    "triviaqa": {"question_id": "tc_1", "question": "who sang it", "answer": {
        "value": "Abba", "aliases": ["Abba", "ABBA (band)"], "normalized_aliases": ["abba band", "abba"]}},
    "popqa": {"id": 4, "question": "who sang it", "obj": "Abba", "possible_answers": '["Abba", "ABBA (band)"]'},
    "musique": {"id": "2hop__1_2", "question": "who sang it", "answer": "Abba", "answer_aliases": ["ABBA (band)"],
                "answerable": True, "paragraphs": [{"idx": 0, "title": "A", "paragraph_text": "B"}]},
    "hotpotqa": {"_id": "5a8b", "question": "who sang it", "answer": "Abba", "type": "bridge", "level": "hard",
                 "supporting_facts": [["A", 0]], "context": [["A", ["B"]]]},
    "2wiki": {"_id": "8813", "question": "who sang it", "answer": "Abba", "type": "compositional",
              "evidences": [["A", "b", "C"]], "context": []},
    "bamboogle": {"Question": "who sang it", "Answer": "Abba"},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_columns_are_read_and_judged(name, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(PUBLISHED[name]))
    env = SearchQA("all", tasks=str(path))
    (task,) = TextEnv(env).tasks
    assert (task.prompt, task.answer) == ("who sang it", "Abba")
    assert task.data["aliases"] == ([] if name in ("hotpotqa", "2wiki", "bamboogle") else ["ABBA (band)"])
    for text, success in (("Answer: ABBA", 1.0), ("Answer: ABBA band", float(bool(task.data["aliases"])))):
        assert worlds.judged(env, Attempt(task, (), text, (), 1))[0] == success


@pytest.mark.parametrize(("row", "said"), [
    ({"question": "who", "reply": "x"}, "'question', 'reply'; expected question"),
    ({"question": "", "answer": "x"}, "empty text in 'question'"),
    ({"question": "who", "golden_answers": []}, "an empty list in 'golden_answers'"),
    ({"question": "who", "golden_answers": ["x", 3]}, "a list of 2 in 'golden_answers'"),
    ({"question": "who", "possible_answers": '["x"'}, "no JSON list"),
    ({"question": "who", "answer": {"aliases": ["x"]}}, r"null in 'answer\.value'"),
    ({"question": "who", "answer": "x", "answerable": False}, "MuSiQue-Ans"),
])  # fmt: skip
def test_a_wrong_row_is_named(row, said, saved):
    with pytest.raises(TaskFileError, match=said):
        _ = TextEnv(SearchQA("all", tasks=saved({"question": "why", "answer": "y"}, row))).tasks


def test_test_sets_are_eval_and_other_files_are_split(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"Question": f"who {n}", "Answer": "x"}) for n in range(20)))
    assert len(TextEnv(SearchQA("eval", tasks=str(path))).tasks) == 20
    path.write_text("\n".join(json.dumps({"question": f"who {n}", "answer": "x"}) for n in range(50)))
    sizes = [len(TextEnv(SearchQA(split, tasks=str(path))).tasks) for split in ("train", "eval")]
    assert sum(sizes) == 50
    assert 0 < sizes[1] < sizes[0]


def test_questions_of_a_file_are_not_asked_of_the_generated_world(saved):
    env = TextEnv(SearchQA("all", tasks=saved({"question": "who sang it", "answer": "Abba"})))
    with pytest.raises(UsageError, match="say where to search"):
        env.reset(seed=0)


@pytest.mark.parametrize(("options", "said"), [
    ({"kinds": "double"}, "single, bridge, comparison"), ({"kinds": ()}, "expected some of"), ({"kinds": 3}, "some of"),
    ({"hops": 5}, "from 2 to 4"), ({"metric": "bleu"}, "one of em, f1, rule"), ({"world": "real"}, "'full' or 'plain'"),
    ({"world": ["full"]}, "'full' or 'plain'"),
    ({"size": 3}, "from 40"), ({"world_seed": -1}, "from 0"), ({"search": "gogle"}, "embedded"),
])  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        SearchQA(**options)
