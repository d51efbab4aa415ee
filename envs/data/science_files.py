"""Reads science questions with the columns of GPQA or MegaScience, from CSV, JSON lines, a JSON list or parquet.

    GPQA          Question, Correct Answer, Incorrect Answer 1 to 3; Record ID and Subdomain may be missing.
                  A test set: without a `split` column all of it is eval, and it has no train split.
    MegaScience   question, reference_answer (the short answer); subject may be missing. If no `split` column decides,
                  the question's hash makes about one row in five eval.

The columns decide the format, and split='all' takes all rows. All rows are checked before one is used. Left out:
fetching files.
"""

from collections.abc import Callable

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import cell_text, first_columns, published
from palaestra.envs.data.rows import Row, list_names
from palaestra.episode import Task

WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
GPQA = ("Question", "Correct Answer", *WRONG)
MEGASCIENCE = ("question", "reference_answer")


def holds_questions(path: str) -> bool:
    """Return whether the first row has the columns of one of these formats, and is not a row of a task file."""
    columns = first_columns(path)
    return "prompt" not in columns and not columns.keys().isdisjoint(("Question", "question"))


def read_questions(path: str, split: str, finish: Callable[[Task], Task] = lambda task: task) -> list[Task]:
    """Return the questions of one split, or of `all`; `data` has the subject, and the wrong options of GPQA.

    `finish` completes a task, or raises a ValueError that says what is wrong.
    """
    return published(path, split, question, finish)


def question(row: Row) -> tuple[str, Task]:
    """Return the split and the task of a row; raise ValueError if the row is wrong."""
    cells = row.columns
    if "Question" in cells:
        text, right, *wrong = (cell_text(cells, column) for column in GPQA)
        if len({right, *wrong}) < len(GPQA) - 1:
            raise ValueError("has two answers that are the same")
        split, name, subject = "eval", "Record ID", "Subdomain"
    elif "question" in cells:
        text, right = (cell_text(cells, column) for column in MEGASCIENCE)
        wrong = []
        split, name, subject = split_of(text), "id", "subject"
    else:
        raise ValueError(
            f"has the columns {list_names(cells)}; expected {list_names(GPQA)}, or {list_names(MEGASCIENCE)}"
        )
    data = {"wrong": wrong, "subject": str(cells.get(subject) or "")}
    return split, Task(text, right, str(cells.get(name) or ""), data)
