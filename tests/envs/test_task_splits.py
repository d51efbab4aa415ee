"""Whose tasks a file's rows are: what its column says, a fifth by prompt, or all of a published test."""

import csv
import json

import gymnasium
import pytest
from driven import refused

from palaestra import UsageError
from palaestra.cli import main
from palaestra.envs.checks.findings import Skipped
from palaestra.envs.checks.task_checks import splits_disjoint
from palaestra.envs.checks.trials import Subject
from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import load_problems
from palaestra.envs.data.science_files import GPQA, read_questions
from palaestra.envs.data.task_files import load_tasks
from palaestra.errors import TaskFileError

READERS = {
    "tasks": (load_tasks, {"prompt": "What is {n}?", "answer": "{n}"}),
    "problems": (
        lambda path, split: load_problems(path, split, ("problem",)),
        {"problem": "Find {n}.", "answer": "{n}"},
    ),
    "questions": (read_questions, {"question": "{n}?", "reference_answer": "{n}"}),
}
PUBLISHED = {
    "palaestra/CodeMath-v0": {"Problem": "Find {n}.", "Answer": "{n}"},
    "palaestra/Science-v0": {"question": "What is {n} + 1?", "reference_answer": "{n}1"},
    "palaestra/Calculator-v0": {"prompt": "What is {n} + 1?", "answer": "{n}1"},
}


@pytest.fixture
def saved(tmp_path):
    """Write a row so many times, as JSON lines, each with a number and a column of its own."""

    def write(row, count, **columns):
        rows = [{name: text.format(n=n) for name, text in row.items()} for n in range(count)]
        for name, values in columns.items():
            for one, value in zip(rows, values, strict=False):
                one[name] = value
        path = tmp_path / "tasks.jsonl"
        path.write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
        return str(path)

    return write


def prompts(env_id, **options):
    return [task.prompt for task in gymnasium.make(env_id, **options).unwrapped.tasks]


def asked(found):
    return [getattr(one, "prompt", None) or one.text for one in found]


@pytest.mark.parametrize(("env_id", "row"), PUBLISHED.items(), ids=PUBLISHED)
def test_all_of_a_published_file_is_played_and_training_on_it_leaks_nothing(saved, env_id, row):
    path = saved(row, 40)
    train, held_out, every = (prompts(env_id, tasks=path, split=split) for split in ("train", "eval", "all"))
    assert train == prompts(env_id, tasks=path)
    assert not set(train) & set(held_out)
    assert len(every) == 40
    assert set(every) == {*train, *held_out}


def test_eval_plays_all_of_a_file_and_of_nothing_else(saved, tmp_path):
    out = tmp_path / "figures.json"
    options = ["--split", "all", "--env-options", f"tasks={saved(PUBLISHED['palaestra/Calculator-v0'], 7)}"]
    main(["eval", "calculator", *options, "--json", str(out)])
    assert {row["task"] for row in json.loads(out.read_text())["per_task"]} == set(range(7))
    for options in ({}, {"split": "every"}):
        with pytest.raises(UsageError, match=r"name the file with tasks=FILE|expected 'train' or 'eval'"):
            gymnasium.make("palaestra/CodeMath-v0", **{"split": "all", **options})


@pytest.mark.parametrize(("read", "row"), READERS.values(), ids=READERS)
def test_a_column_decides_the_split_and_a_word_that_names_none_is_refused(saved, read, row):
    names = ["train", "Training", "eval", "test", "validation", "val", "dev", " TEST "]
    path = saved(row, 8, split=names)
    assert asked(read(path, "train")) == asked(read(path, "all"))[:2]
    assert asked(read(path, "eval")) == asked(read(path, "all"))[2:]
    nested = saved(row, 8, extra_info=[{"split": name} for name in names])
    assert len(read(nested, "train")) == 2
    for word in ("holdout", "", 3):
        with pytest.raises(TaskFileError, match=r"line 2 column 'split' is .*; expected train, or eval"):
            read(saved(row, 3, split=["train", word, "train"]), "train")


@pytest.mark.parametrize(("read", "row"), READERS.values(), ids=READERS)
def test_without_a_split_or_where_all_say_train_a_fifth_is_held_out_by_prompt(saved, read, row):
    for columns in ({}, {"split": ["train"] * 300}):
        path = saved(row, 300, **columns)
        train, held_out = (asked(read(path, split)) for split in ("train", "eval"))
        assert len(train) + len(held_out) == 300
        assert all(split_of(prompt) == "eval" for prompt in held_out)
        assert 30 < len(held_out) < 90


@pytest.mark.parametrize(("read", "row"), READERS.values(), ids=READERS)
def test_a_question_that_is_in_both_splits_is_refused(saved, read, row):
    same = {name: text.format(n=1) for name, text in row.items()}
    with pytest.raises(TaskFileError, match="line 2 is for 'eval', but line 1 asks the same for 'train'"):
        read(saved(same, 2, split=["train", "test"]), "train")


@pytest.mark.parametrize(("read", "row"), READERS.values(), ids=READERS)
def test_an_empty_split_is_refused_with_advice(saved, read, row):
    tested = saved(row, 2, split=["test", "val"])
    assert len(read(tested, "eval")) == 2
    refused(r"no row is for 'train'; .*eval", read, tested, "train")
    number = next(n for n in range(100) if split_of(next(iter(row.values())).format(n=n)) == "train")
    short = saved({name: text.format(n=number) for name, text in row.items()}, 1)
    refused(r"no row is for 'eval'; .*split='all' plays the whole file", read, short, "eval")
    assert len(read(short, "all")) == 1
    refused("'train' or 'eval'", read, short, "test")


def test_the_check_of_splits_is_skipped_where_a_file_has_one(tmp_path):
    path = tmp_path / "gpqa.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([GPQA, *([f"{n}?", "a", "b", "c", "d"] for n in range(9))])
    with pytest.raises(UsageError, match="a test set, to be played with the option split=eval"):
        prompts("palaestra/Science-v0", tasks=str(path))
    given = {"tasks": str(path), "split": "eval"}
    with pytest.raises(Skipped, match="no row is for 'train'"):
        splits_disjoint(Subject("palaestra/Science-v0", given))
