"""CodeMath: generated families whose programs are right, files of others' columns, and what counts as an answer."""

import json

import gymnasium
import numpy as np
import pytest
from checked import success

import palaestra
from palaestra.envs.suite import code_math
from palaestra.errors import TaskFileError, UsageError
from palaestra.formats import hermes

ID = "palaestra/CodeMath-v0"


def played(action, tasks=None, index=0, **options):
    env = gymnasium.make(ID, tasks=tasks, **options).unwrapped
    env.reset(seed=0, options={"task": index})
    return env.step(action)[1]


@pytest.mark.parametrize("family", code_math.FAMILIES, ids=lambda family: family.name)
def test_the_program_of_a_family_prints_its_answer_and_no_answer_is_common(family, capsys):
    rng = np.random.default_rng(0)
    tasks = [family.task(rng) for _ in range(50)]
    for task in tasks[:5]:
        turn = code_math.demonstrate([{"role": "user", "content": task.prompt}], rng)
        exec(hermes.parse(turn, ()).calls[0].arguments["code"], {})
        assert capsys.readouterr().out.strip() == task.answer
    answers = [task.answer for task in tasks]
    assert max(map(answers.count, answers)) <= 10


@pytest.mark.usefixtures("bare")
def test_the_demonstrator_solves_it_with_the_tool_and_never_by_guessing():
    assert success(ID, palaestra.demonstrator(ID)) == 1.0
    assert success(ID, lambda messages, rng: code_math.demonstrate(messages, rng, tool_rate=0.0)) < 0.1


def test_the_number_in_the_last_box_counts_and_the_boxed_question_does_not():
    env = gymnasium.make(ID).unwrapped
    task = next(task for task in (env.tasks[at] for at in range(50)) if task.data["family"] == "power_remainder")
    index = next(at for at in range(50) if env.tasks[at] == task)
    assert played(f"It is \\boxed{{{task.answer}}}.", index=index) == 1.0
    assert played(f"It is {task.answer}.", index=index) == 0.0
    base, exponent, modulus = (int(n) for n in task.prompt.replace("^", " ").replace("?", "").split() if n.isdigit())
    assert played(f"\\boxed{{{base}^{{{exponent}}} \\bmod {modulus}}}", index=index) == 0.0


def test_self_contained_play_has_no_tools_and_other_words():
    env = gymnasium.make(ID, mode="self-contained").unwrapped
    _, info = env.reset(seed=0)
    assert json.loads(info["tools"]) == []
    assert "tool" not in info["system"]
    for wrong in ({"mode": "alone"}, {"compare": "closely"}):
        with pytest.raises(UsageError, match="expected"):
            gymnasium.make(ID, **wrong)


DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is\n\n2 + 2?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
ROWS = {
    "dapo": {
        "prompt": [{"role": "user", "content": DAPO}],
        "reward_model": {"ground_truth": "4", "style": "rule"},
        "extra_info": {"index": "9a9b"},
    },
    "skywork": {"prompt": [{"role": "user", "content": "2 + 2?"}], "reward_model": {"ground_truth": '["4"]'}},
    "aime": {"id": 60, "problem": "2 + 2?", "solution": "Add them.", "answer": "4", "url": "x"},
    "aime, capitals": {"ID": "2024-I-1", "Problem": "2 + 2?", "Answer": 4},
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_f27_files_are_read_with_the_columns_of_their_makers(row, saved):
    path = saved(row)
    assert [played(f"\\boxed{{{text}}}", path) for text in ("4", "4.0", "5")] == [1.0, 1.0, 0.0]
    assert played("\\boxed{4.0}", path, compare="text") == 0.0


def test_a_problem_is_asked_without_a_form_of_answer_that_is_not_the_one_scored(saved):
    evals = DAPO.replace("Answer: $Answer", '"ANSWER: $ANSWER"').replace('after "Answer:".', "at the end, and no box.")
    rows = [DAPO, evals, "Solve the following math problem step by step.\n\n2 + 2?"]
    splits = ["train", "train", "train", "eval"]
    asked = zip([*rows, "1 + 3?"], splits, strict=True)
    path = saved(*({"prompt": row, "answer": "4", "split": split} for row, split in asked))
    tasks = gymnasium.make(ID, tasks=path).unwrapped.tasks
    assert [task.prompt for task in tasks] == ["What is\n\n2 + 2?"] * 2 + [rows[2]]


def test_a_row_without_question_or_answer_is_named(saved):
    riddle = {"riddle": "3 + 3?", "answer": "6"}
    for row, said in (({"problem": "3 + 3?"}, "line 2.*no answer"), (riddle, "line 2 has no question.*'riddle'")):
        path = saved({"problem": "2 + 2?", "answer": "4"}, row)
        with pytest.raises(TaskFileError, match=said):
            _ = gymnasium.make(ID, tasks=path).unwrapped.tasks


@pytest.mark.parametrize(("answer", "said"), [
    ("The answer is 5", "sentence"), ("Work.\n#### 5", "sentence"), ('["1"', "no JSON"), ("[]", "empty"),
    (r"\frac{1", "braces"), (True, "its answer is true"), ({"a": 1}, "its answer is an object"), (["5", ""], "empty"),
    ([], "its answer is"),
])  # fmt: skip
def test_an_answer_that_nothing_in_a_box_could_be_is_refused(saved, answer, said):
    for column in ("answer", "ground_truth"):
        path = saved({"problem": "2 + 3?", column: answer})
        with pytest.raises(TaskFileError, match=f"line 1.*{said}"):
            _ = gymnasium.make(ID, tasks=path).unwrapped.tasks


@pytest.mark.parametrize(
    "answer", ["[1, 2]", r"\{1, 2\}", r"\left\{1\right.", '["5", "five"]', 5, 2.5, ["5"], "(0, 1]"]
)
def test_intervals_sets_lists_and_numbers_are_answers(saved, answer):
    assert len(gymnasium.make(ID, tasks=saved({"problem": "2 + 3?", "answer": answer})).unwrapped.tasks) == 1
