"""Reads files of training data, in the columns in which they were published, for a pool (`pool`).

    tasks (`task_files`), questions (`question_files`), MegaScience (`science_files`), problems (`problem_files`)

The first row's columns decide the format. An environment refuses a file for one wrong row; this module reports wrong
rows and reads the others. Files that are published as tests (GAIA, HLE, xbench, WebWalkerQA, Bamboogle, PopQA, GPQA)
are refused as training data. Of a test file only the prompts are read, so that the pool can leave them out.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from palaestra.envs.data.problem_files import problem
from palaestra.envs.data.question_files import question
from palaestra.envs.data.research_files import decrypted
from palaestra.envs.data.rows import Row, describe, list_names, read_rows
from palaestra.envs.data.science_files import MEGASCIENCE
from palaestra.envs.data.science_files import question as science_question
from palaestra.envs.data.task_files import TaskFileScan
from palaestra.envs.data.task_rows import first_of, label_of, prompt_of, task_of
from palaestra.episode import Task
from palaestra.errors import TaskFileError, UsageError

QUESTIONS = ("question", "Question", "problem", "Problem", "question_content")
_ANSWERS = ("golden_answers", "answer", "answers", MEGASCIENCE[1])
_OF_TESTS = ("Final answer", "root_url", "Root_Url", "canary", "possible_answers", "Correct Answer")


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One row of a file for a pool."""

    source: str
    """Source that the row names, else the file's name without its suffix."""
    task: Task
    for_eval: bool
    """True if the row says that it belongs to a test."""


def read_pool_file(path: str | os.PathLike[str]) -> tuple[list[PoolRow], TaskFileError | None]:
    """Return the readable rows, and the error for the wrong rows or None.

    A task without an answer has the answer None.
    """
    columns, file = _first(path), os.path.basename(os.fspath(path))
    tests = [name for name in _OF_TESTS if name in columns] + ["Answer"] * ({"Question", "Answer"} <= {*columns})
    tests += ["answer_type"] * (columns.get("answer_type") in ("multipleChoice", "exactMatch"))
    if tests:
        raise UsageError(
            f"{os.fspath(path)}: its column {tests[0]!r} is that of a published test, which is not trained on; name it "
            "with --against, and the pool will have nothing of it (columns of training data: prompt, answer)"
        )
    stem, read = os.path.splitext(file)[0], _reader(columns, file)

    def made(row: Row) -> PoolRow:
        label, task = label_of(row.columns)[1], read(row)
        source = first_of(row.columns, ("source", "data_source"))[1]
        named_task = task if task.id else replace(task, id=f"{file}:{row.number}")
        return PoolRow(source if isinstance(source, str) and source else stem, named_task, label == "eval")

    reading = TaskFileScan(path)
    rows = [row for _, row in reading.of(made)]
    return rows, reading.fault()


def read_test_prompts(path: str | os.PathLike[str]) -> list[str]:
    """Return the prompts of all rows of a test.

    Raise TaskFileError if one cannot be read, because the pool could contain it.
    """
    reading = TaskFileScan(path)
    prompts = [prompt for _, prompt in reading.of(_test_prompt)]
    reading.refuse()
    if not prompts:
        raise TaskFileError(reading.path, "it holds no question")
    return prompts


def is_empty(answer: Any) -> bool:
    """Return whether an answer is empty: None, blank text, {}, or a list of empty answers."""
    if isinstance(answer, list | tuple):
        return all(map(is_empty, answer))
    return answer is None or answer == {} or (isinstance(answer, str) and not answer.strip())


def _first(path: str | os.PathLike[str]) -> dict[str, Any]:
    first = next((row for row in read_rows(path)[1] if not row.fault), None)
    if first is None:
        raise TaskFileError(os.fspath(path), "none of its rows can be read; expected tasks or questions, one a row")
    return first.columns


def _reader(columns: Mapping[str, Any], file: str) -> Callable[[Row], Task]:
    """Return the function that makes a task of a row, chosen by the columns of the first row."""
    if "prompt" in columns and "golden_answers" not in columns:
        return task_of
    if MEGASCIENCE[1] in columns:
        return lambda row: _answered(row, science_question)
    numbers = isinstance(columns.get("answer"), int | float)  # Of mathematics: short answers in words are texts.
    if "question" in columns and {"golden_answers", "answer"} & {*columns} and not numbers:
        return lambda row: _answered(row, question)
    if {*QUESTIONS}.isdisjoint(columns):
        raise TaskFileError(
            file, f"it has the columns {list_names(columns)}; expected prompt, or one of {list_names(QUESTIONS)}"
        )
    return lambda row: problem(file, row, QUESTIONS)[1]


def _answered(row: Row, read: Callable[[Row], tuple[str, Task]]) -> Task:
    """Return the task of a row, also if it has no answer; readers of questions would refuse such a row."""
    if is_empty(first_of(row.columns, _ANSWERS)[1]) and isinstance(row.columns.get("question"), str):
        return Task(row.columns["question"], None)
    return read(row)[1]


def _test_prompt(row: Row) -> str:
    cells = row.columns
    if "canary" in cells and isinstance(cells.get("prompt"), str):
        return decrypted(cells, "prompt")
    if "prompt" in cells and "golden_answers" not in cells:
        return prompt_of(cells)
    text = first_of(cells, QUESTIONS)[1]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"has {describe(text)} as its question; expected a text in prompt, {list_names(QUESTIONS)}")
    return text
