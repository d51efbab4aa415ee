"""Science questions from files with the columns of GPQA or MegaScience: CSV, JSON lines, a JSON list or parquet.

    GPQA          Question, Correct Answer, Incorrect Answer 1 to 3, and if there are any Record ID, Subdomain.
                  A test set: without a `split` column all of it is eval, and it has no train split.
    MegaScience   question, reference_answer (the short answer), and if there is one subject. About one in five is
                  eval, by the question's hash, where no `split` column decides.

The content decides which it is, and split='all' takes all of it. All rows are looked at before one is used.
Left out: fetching files.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import published
from palaestra.envs.data.rows import Row, describe, named, read_rows

WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
GPQA = ("Question", "Correct Answer", *WRONG)
MEGASCIENCE = ("question", "reference_answer")


@dataclass(frozen=True, slots=True)
class Question:
    """One row: the right answer, and wrong ones where it is multiple choice."""

    id: str
    text: str
    right: str
    wrong: tuple[str, ...] = ()
    subject: str = ""


def holds_questions(path: str) -> bool:
    """Whether a file is one of these, and none of tasks, by its first row."""
    first = next(read_rows(path)[1], None)
    return first is not None and "prompt" not in first.columns and bool({"Question", "question"} & set(first.columns))


def read_questions(path: str, split: str, finish: Callable[[Question], Any] = lambda question: question) -> list[Any]:
    """What `finish` makes of the questions of one split, or of `all`; its ValueError says what is wrong with one."""
    return published(path, split, lambda row: _question(os.path.basename(path), row), finish)


def _question(file: str, row: Row) -> tuple[str, str, Question]:
    """A row as a question, and its split; a ValueError says what is wrong with it."""
    cells = row.columns
    if "Question" in cells:
        text, right, *wrong = (_cell(cells, column) for column in GPQA)
        if len({right, *wrong}) < len(GPQA) - 1:
            raise ValueError("has two answers that are the same")
        subject = str(cells.get("Subdomain") or "")
        return text, "eval", Question(_name(file, row, "Record ID"), text, right, tuple(wrong), subject)
    if "question" not in cells:
        raise ValueError(f"has the columns {named(cells)}; expected {named(GPQA)}, or {named(MEGASCIENCE)}")
    text, right = (_cell(cells, column) for column in MEGASCIENCE)
    return text, split_of(text), Question(_name(file, row, "id"), text, right, subject=str(cells.get("subject") or ""))


def _cell(cells: Mapping[str, Any], column: str) -> str:
    value = cells.get(column)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"has {describe(value)} in {column!r}; expected text")
    return value.strip()


def _name(file: str, row: Row, column: str) -> str:
    return str(row.columns.get(column) or f"{file}:{row.number}")
