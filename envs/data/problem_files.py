"""Reads files of problems in the columns that their publishers use, for environments that need other column names.

A file with a column `prompt` is read by `load_tasks`. In any other file the question is in a column that the
environment names, such as `problem` (AIME), `question` (APPS) or `question_content` (LiveCodeBench), and all other
columns are in `Task.data`. The split is decided as in `task_files`. Every row is checked before one is used. Left out:
files of several parts, and addresses on a network.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.rows import Row, describe, list_names, read_rows
from palaestra.envs.data.task_files import WHOLE, TaskFileScan, check_part, divided, load_tasks, none_for
from palaestra.envs.data.task_rows import first_of, label_of
from palaestra.episode import Task
from palaestra.errors import TaskFileError

_IDS = ("id", "ID", "task_id", "question_id", "problem_id")
_ANSWERS = ("answer", "Answer", "ground_truth")


def load_problems(
    path: str, split: str, questions: Sequence[str], finish: Callable[[Task], Task] = lambda task: task
) -> list[Task]:
    """Return the tasks of a split; the split `all` is the whole file.

    `finish` completes a task from its data, or raises a ValueError that says what is wrong.
    """
    check_part(split)
    unit, columns = read_rows(path)[0], first_columns(path)
    if columns and "prompt" not in columns:
        return published(path, split, lambda row: problem(unit, row, questions), finish)
    reading, tasks = TaskFileScan(path), load_tasks(path, split)
    reading.unit, reading.rows = "task", len(tasks)
    return _finished(reading, enumerate(tasks, start=1), finish)


def published(
    path: str, split: str, read: Callable[[Row], tuple[str, Task]], finish: Callable[[Task], Task] = lambda task: task
) -> list[Task]:
    """Return the tasks of a split: `read` makes a task of each row, and `finish` completes it.

    Both may raise ValueError.

    `read` also returns a split, which is used if no row of the file names one. A task without an id gets FILE:NUMBER.
    """
    check_part(split)
    reading = TaskFileScan(path)
    rows = list(reading.of(lambda row: (label_of(row.columns)[1], *read(row))))
    for number, (label, _, task) in rows:
        reading.check_asked(number, task.prompt, label)
    splits = divided([label for _, (label, _, _) in rows], [otherwise for _, (_, otherwise, _) in rows])
    split_tasks = [
        (number, task if task.id else replace(task, id=f"{os.path.basename(path)}:{number}"))
        for (number, (_, _, task)), row_split in zip(rows, splits, strict=True)
        if split in (row_split, WHOLE)
    ]
    tasks = _finished(reading, split_tasks, finish)
    if not rows:
        raise TaskFileError(path, "it holds no question")
    if not tasks:
        name = "a test set" if splits[0] == "eval" else "they"
        raise none_for(path, split, f"{name}, to be played with the option split={splits[0]}")
    return tasks


def _finished(
    reading: TaskFileScan, numbered: Iterable[tuple[int, Task]], finish: Callable[[Task], Task]
) -> list[Task]:
    """Return all tasks after `finish`; raise TaskFileError if any row is wrong."""
    finished_tasks = []
    for number, task in numbered:
        try:
            finished_tasks.append(finish(task))
        except ValueError as error:
            reading.add(number, f"({task.id!r}): {error}")
    reading.refuse()
    return finished_tasks


def problem(unit: str, row: Row, questions: Sequence[str]) -> tuple[str, Task]:
    """Return the split and the task of a row."""
    name, prompt = first_of(row.columns, questions)
    if not isinstance(prompt, str) or not prompt.strip():
        names = ", ".join(map(repr, ("prompt", *questions)))
        raise ValueError(f"has no question; expected one of the columns {names}, found {list_names(row.columns)}")
    task_id = str(first_of(row.columns, _IDS)[1] or f"{unit} {row.number}")
    data = {key: value for key, value in row.columns.items() if key != name}
    return split_of(prompt), Task(prompt, first_of(row.columns, _ANSWERS)[1], task_id, data)


def first_columns(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return the columns of the first row; empty if the file has no row or the first row cannot be read."""
    first = next(read_rows(path)[1], None)
    return {} if first is None else first.columns


def cell_text(columns: Mapping[str, Any], column: str) -> str:
    """Return a cell as text without blanks around it; raise ValueError if it is neither text nor a number."""
    value = columns.get(column)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"has {describe(value)} in {column!r}; expected text")
    return value.strip()
