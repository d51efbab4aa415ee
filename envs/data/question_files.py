"""Reads questions with short answers in their published columns, from CSV, JSON lines, a JSON list or parquet.

    FlashRAG, Search-R1      question, golden_answers (their column `prompt` is ignored: it names other tools)
    PopQA                    question, possible_answers (a list, or one as JSON text)
    TriviaQA                 question, answer.value, answer.aliases
    MuSiQue                  question, answer, answer_aliases; rows whose `answerable` is false are refused
    NQ-open                  question, answer (a list)
    HotpotQA, 2WikiMultihopQA    question, answer, type
    Bamboogle                Question, Answer

The columns decide the format. A task's answer is the first answer of the row, the others are in `data["aliases"]`, and
a column data_source or source is in `data["source"]`. Bamboogle and PopQA are test sets: without a column `split` all
rows are eval. In the other files the question's hash makes about a fifth of the rows eval; play a file that is a whole
test with split='all'. All rows are checked before one is used. Left out: the passages in some of these files, and
fetching files.
"""

import json
from collections.abc import Mapping
from typing import Any

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import first_columns, published
from palaestra.envs.data.rows import Row, describe, list_names
from palaestra.envs.data.task_rows import first_of
from palaestra.episode import Task

ANSWERS = ("golden_answers", "possible_answers", "answer", "Answer")
_IDS = ("id", "_id", "question_id")
_TEST_SETS = ("possible_answers", "Answer")
"""Answer columns of files of which all rows are test rows."""
_EXPECTED = f"question (Question) and one of {list_names(ANSWERS)}"


def holds_questions(path: str) -> bool:
    """Return whether the first row has the columns of one of these formats, and is not a row of a task file."""
    columns = first_columns(path)
    asks = not columns.keys().isdisjoint(("question", "Question"))
    return asks and ("prompt" not in columns or "golden_answers" in columns)


def read_questions(path: str, split: str) -> list[Task]:
    """Return the questions of one split, or of `all`."""
    return published(path, split, question)


def question(row: Row) -> tuple[str, Task]:
    """Return the split and the task of a row; raise ValueError if the row is wrong."""
    cells = row.columns
    name, text = first_of(cells, ("question", "Question"))
    column, value = first_of(cells, ANSWERS)
    if not name or not column:
        raise ValueError(f"has the columns {list_names(cells)}; expected {_EXPECTED}")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"has {describe(text)} in {name!r}; expected text")
    if cells.get("answerable") is False:
        raise ValueError("has 'answerable': false; expected questions that have an answer, as MuSiQue-Ans has")
    answers = _answers(column, value, cells)
    data: dict[str, Any] = {"aliases": answers[1:]}
    if isinstance(cells.get("type"), str):
        data["kind"] = cells["type"]
    source = first_of(cells, ("data_source", "source"))[1]
    if isinstance(source, str):
        data["source"] = source
    split = "eval" if column in _TEST_SETS else split_of(text)
    return split, Task(text.strip(), answers[0], str(first_of(cells, _IDS)[1] or ""), data)


def _answers(column: str, value: Any, cells: Mapping[str, Any]) -> list[str]:
    """Return all accepted answers, beginning with the first of the row."""
    if isinstance(value, dict):  # TriviaQA.
        answers = [
            *_texts(f"{column}.value", value.get("value")),
            *_texts(f"{column}.aliases", value.get("aliases"), 0),
        ]
    else:
        answers = _texts(column, value)
    if column == "answer":
        answers += _texts("answer_aliases", cells.get("answer_aliases"), 0)
    return list(dict.fromkeys(answers))


def _texts(column: str, value: Any, least: int = 1) -> list[str]:
    """Return texts from a text, a list of texts, or a list in JSON; raise ValueError for fewer than `least`."""
    if isinstance(value, str) and value.lstrip()[:2] in ('["', "[]"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"has {describe(value)} in {column!r}, which is no JSON list: {error}") from None
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if len(texts) < least or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"has {describe(value)} in {column!r}; expected a text, or a list of texts")
    return [text.strip() for text in texts]
