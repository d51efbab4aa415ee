"""Science questions from files with the columns of GPQA or MegaScience: CSV, JSON lines, a JSON list or parquet.

    GPQA          Question, Correct Answer, Incorrect Answer 1 to 3, and if there are any Record ID, Subdomain.
                  A test set: without a `split` column all of it is eval, and it has no train split.
    MegaScience   question, reference_answer (the short answer), and if there is one subject. About one in five is
                  eval, by the question's hash, where no `split` column decides.

The columns decide the format, and split='all' takes all rows. All rows are checked before one is used.
Left out: fetching files.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import published
from palaestra.envs.data.rows import Row, describe, list_names, read_rows
from palaestra.episode import Task

WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
GPQA = ("Question", "Correct Answer", *WRONG)
MEGASCIENCE = ("question", "reference_answer")


def holds_questions(path: str) -> bool:
    """Return whether the first row has the columns of one of these formats, and not those of a task file."""
    first = next(read_rows(path)[1], None)
    return first is not None and "prompt" not in first.columns and bool({"Question", "question"} & set(first.columns))


def read_questions(path: str, split: str, finish: Callable[[Task], Task] = lambda task: task) -> list[Task]:
    """Return the questions of one split, or of `all`; `data` has the subject, and the wrong options of GPQA.

    `finish` completes a task, or raises a ValueError that says what is wrong.
    """
    return published(path, split, lambda row: question(os.path.basename(path), row), finish)


def question(file: str, row: Row) -> tuple[str, Task]:
    """Return the split and the task of a row; raise ValueError where the row is wrong."""
    cells = row.columns
    if "Question" in cells:
        text, right, *wrong = (_cell(cells, column) for column in GPQA)
        if len({right, *wrong}) < len(GPQA) - 1:
            raise ValueError("has two answers that are the same")
        split, name, subject = "eval", "Record ID", "Subdomain"
    elif "question" in cells:
        text, right, *wrong = (_cell(cells, column) for column in MEGASCIENCE)
        split, name, subject = split_of(text), "id", "subject"
    else:
        raise ValueError(
            f"has the columns {list_names(cells)}; expected {list_names(GPQA)}, or {list_names(MEGASCIENCE)}"
        )
    data = {"wrong": wrong, "subject": str(cells.get(subject) or "")}
    return split, Task(text, right, str(cells.get(name) or f"{file}:{row.number}"), data)


def _cell(cells: Mapping[str, Any], column: str) -> str:
    value = cells.get(column)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"has {describe(value)} in {column!r}; expected text")
    return value.strip()
