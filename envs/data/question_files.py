"""Questions with short answers from files in their published columns: CSV, JSON lines, a JSON list or parquet.

    FlashRAG, Search-R1      question, golden_answers (whatever their column `prompt` says: it names other tools)
    PopQA                    question, possible_answers (a list, or one as JSON text)
    TriviaQA                 question, answer.value, answer.aliases
    MuSiQue                  question, answer, answer_aliases; rows whose `answerable` is false are refused
    NQ-open                  question, answer (a list)
    HotpotQA, 2WikiMultihopQA    question, answer, type
    Bamboogle                Question, Answer

The columns decide which it is. A task's answer is the first one, the others are in `data["aliases"]`, what a
column data_source or source says in `data["source"]`. Bamboogle and
PopQA are test sets: without a column `split` all of them is eval. Of the others a fifth is, by the question's hash; a
test that was published as a whole is played with split='all'. All rows are looked at before one is used.
Left out: the passages that some of these files bring, and fetching files.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.problem_files import published
from palaestra.envs.data.rows import Row, describe, named, read_rows
from palaestra.envs.data.task_files import first_of
from palaestra.episode import Task

ANSWERS = ("golden_answers", "possible_answers", "answer", "Answer")
_IDS = ("id", "_id", "question_id")
_TEST_SETS = ("possible_answers", "Answer")
"""Answer columns of files that are tests as a whole."""
_EXPECTED = f"question (Question) and one of {named(ANSWERS)}"


def holds_questions(path: str) -> bool:
    """Whether a file is one of these, and none of tasks, by its first row."""
    first = next(read_rows(path)[1], None)
    if first is None:
        return False
    columns = set(first.columns)
    return bool({"question", "Question"} & columns) and ("prompt" not in columns or "golden_answers" in columns)


def read_questions(path: str, split: str) -> list[Task]:
    """The questions of one split, or `all`."""
    return published(path, split, lambda row: question(os.path.basename(path), row), lambda task: task)


def question(file: str, row: Row) -> tuple[str, Task]:
    """Its split, and a row as a task; a ValueError says what is wrong with it."""
    cells = row.columns
    name, text = first_of(cells, ("question", "Question"))
    column, value = first_of(cells, ANSWERS)
    if not name or not column:
        raise ValueError(f"has the columns {named(cells)}; expected {_EXPECTED}")
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
    return split, Task(text.strip(), answers[0], str(first_of(cells, _IDS)[1] or f"{file}:{row.number}"), data)


def _answers(column: str, value: Any, cells: Mapping[str, Any]) -> list[str]:
    """All that count as right, the first one first."""
    if isinstance(value, dict):  # TriviaQA.
        found = [*_texts(f"{column}.value", value.get("value")), *_texts(f"{column}.aliases", value.get("aliases"), 0)]
    else:
        found = _texts(column, value)
    if column == "answer":
        found += _texts("answer_aliases", cells.get("answer_aliases"), 0)
    return list(dict.fromkeys(found))


def _texts(column: str, value: Any, least: int = 1) -> list[str]:
    """A text, or a list of texts, perhaps written as JSON."""
    if isinstance(value, str) and value.lstrip()[:2] in ('["', "[]"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"has {describe(value)} in {column!r}, which is no JSON list: {error}") from None
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if len(texts) < least or not all(isinstance(one, str) and one.strip() for one in texts):
        raise ValueError(f"has {describe(value)} in {column!r}; expected a text, or a list of texts")
    return [one.strip() for one in texts]
