"""Whose tasks a file's rows are: what its column says, a fifth by prompt, or all of a published test."""

import csv
import json

import gymnasium
import pytest

from palaestra import UsageError
from palaestra.cli import main
from palaestra.envs.checks.check import splits_disjoint
from palaestra.envs.checks.findings import Skipped
from palaestra.envs.data.problem_files import load_problems
from palaestra.envs.data.science_files import GPQA, read_questions
from palaestra.envs.data.task_files import load_tasks
from palaestra.errors import TaskFileError
from palaestra.registry import preset

PUBLISHED = {
    "palaestra/CodeMath-v0": {"Problem": "Find {n}.", "Answer": "{n}"},
    "palaestra/Science-v0": {"question": "What is {n} + 1?", "reference_answer": "{n}1"},
    "palaestra/Calculator-v0": {"prompt": "What is {n} + 1?", "answer": "{n}1"},
}


@pytest.fixture
def saved(tmp_path):
    """Write rows as JSON lines."""

    def write(rows, name="tasks.jsonl"):
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


def problems(count, **more):
    return [{"problem": f"Find {n}.", "answer": str(n), **more} for n in range(count)]


def prompts(env_id, **options):
    env = gymnasium.make(env_id, **options).unwrapped
    return [task.prompt for task in env.tasks]


@pytest.mark.parametrize(("env_id", "row"), PUBLISHED.items(), ids=PUBLISHED)
def test_all_of_a_published_file_is_played_and_training_on_it_leaks_nothing(saved, env_id, row):
    path = saved([{name: value.format(n=n) for name, value in row.items()} for n in range(40)])
    train, held_out, every = (prompts(env_id, tasks=path, split=split) for split in ("train", "eval", "all"))
    assert train == prompts(env_id, tasks=path)
    assert not set(train) & set(held_out)
    assert len(every) == 40
    assert set(every) == {*train, *held_out}


def test_all_is_of_a_file_and_of_nothing_else():
    for options in ({}, {"split": "every"}):
        with pytest.raises(UsageError, match=r"name the file with tasks=FILE|expected 'train' or 'eval'"):
            gymnasium.make("palaestra/CodeMath-v0", **{"split": "all", **options})


def test_who_misses_the_test_in_a_small_file_is_told_of_all(saved):
    path = saved(problems(3))  # By their hash, all of these are for training.
    with pytest.raises(UsageError, match="split='all' plays the whole file"):
        load_problems(path, "eval", ("problem",))
    plain = saved([{"prompt": row["problem"]} for row in problems(3)], "plain.jsonl")
    with pytest.raises(UsageError, match="split='all' plays the whole file"):
        load_tasks(plain, "eval")
    assert len(load_tasks(plain, "all")) == 3


def test_eval_plays_all_of_a_file(saved, tmp_path):
    path = saved([{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(7)])
    out = tmp_path / "figures.json"
    options = ["--split", "all", "--env-options", f"tasks={path}", "--json", str(out)]
    main(["eval", "calculator", *options])
    assert {row["task"] for row in json.loads(out.read_text())["per_task"]} == set(range(7))


@pytest.mark.parametrize("word", ["holdout", "", 3])
def test_a_word_that_names_no_split_is_refused_in_published_files_too(saved, word):
    rows = problems(3)
    rows[1]["split"] = word
    with pytest.raises(TaskFileError, match=r"line 2 column 'split' is .*; expected train, or eval"):
        load_problems(saved(rows), "train", ("problem",))
    rows = [{"question": f"{n}?", "reference_answer": "a"} for n in range(3)]
    rows[1]["split"] = word
    with pytest.raises(TaskFileError, match=r"line 2 column 'split' is .*; expected train, or eval"):
        read_questions(saved(rows, "science.jsonl"), "train")


def test_a_column_decides_the_split_of_published_files(saved):
    labels = [{"split": ("train", "TEST")[n % 2]} for n in range(6)]
    mathematics = saved([{**row, **label} for row, label in zip(problems(6), labels, strict=True)])
    science = saved([{"question": f"{n}?", "reference_answer": "a", **labels[n]} for n in range(6)], "science.jsonl")
    found = load_problems(mathematics, "train", ("problem",)), load_problems(mathematics, "eval", ("problem",))
    assert [[task.answer for task in half] for half in found] == [["0", "2", "4"], ["1", "3", "5"]]
    asked = [[one.text for one in read_questions(science, split)] for split in ("train", "eval")]
    assert asked == [["0?", "2?", "4?"], ["1?", "3?", "5?"]]


def test_where_all_rows_say_train_a_fifth_is_held_out_in_published_files_too(saved):
    path = saved(problems(200, split="train"))
    train, held_out = (load_problems(path, split, ("problem",)) for split in ("train", "eval"))
    assert 20 < len(held_out) < 60
    assert len(train) + len(held_out) == 200


def test_a_question_that_is_in_both_splits_is_refused_in_published_files_too(saved):
    rows = [{"problem": "Find 1.", "answer": "1", "split": split} for split in ("train", "test")]
    with pytest.raises(TaskFileError, match="line 2 is for 'eval', but line 1 asks the same for 'train'"):
        load_problems(saved(rows), "train", ("problem",))


def test_the_check_of_splits_is_skipped_where_a_file_has_one(tmp_path):
    path = tmp_path / "gpqa.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([GPQA, *([f"{n}?", "a", "b", "c", "d"] for n in range(9))])
    with pytest.raises(UsageError, match="the option split=eval"):
        prompts("palaestra/Science-v0", tasks=str(path))
    given = {"tasks": str(path), "split": "eval"}
    with preset("palaestra/Science-v0", given), pytest.raises(Skipped, match="has no 'train' split"):
        splits_disjoint("palaestra/Science-v0")
