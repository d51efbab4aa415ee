"""Makes a task of one row of a file: its prompt, answer, id and split, and the columns that hold them.

`task_files` lists the columns. Left out: everything that needs other rows, such as an id that is used twice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from palaestra.envs.data.rows import Row, describe, list_names
from palaestra.episode import Task

ANSWERS = ("reward_model.ground_truth", "reward_spec.ground_truth", "answer", "ground_truth", "solution")
IDS = ("id", "task_id")
INDEX = "extra_info.index"
SPLITS = ("split", "extra_info.split")
_NAMES = {
    "train": ("train", "training"),
    "eval": ("eval", "evaluation", "test", "testing", "validation", "valid", "val", "dev"),
}
_SPLIT_OF_NAME = {name: split for split, names in _NAMES.items() for name in names}


@dataclass(slots=True)
class RowTask:
    """One row as a task, and the names of the columns that its parts come from."""

    number: int
    task: Task
    label: str
    """Split that the row names, or ""."""
    sources: dict[str, str]
    """Columns of prompt, answer, id and split; "" for a missing part."""


def row_task_of(row: Row) -> RowTask:
    """Return a row as a task; raise ValueError that says what is wrong in it."""
    columns = row.columns
    prompt, system, prompt_source = _prompt(columns)
    answer_source, answer = first_of(columns, ANSWERS)
    id_source, task_id = _id(columns)
    label_source, label = label_of(columns)
    task_columns = ("prompt", "answer") if answer_source == "answer" else ("prompt",)
    data = {name: value for name, value in columns.items() if name not in task_columns}
    if system:
        if data.get("system") not in (None, system):
            raise ValueError("has a column 'system' and a system message in 'prompt'; expected one of them")
        data["system"] = system
    task = Task(prompt=prompt, answer=answer, id=task_id, data=data)
    sources = {"prompt": prompt_source, "answer": answer_source, "id": id_source, "split": label_source}
    return RowTask(row.number, task, label, sources)


def first_of(columns: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Any]:
    """Return the first of these columns that is not null, with its value; ("", None) if all are missing.

    The name a.b means the field b of the object in column a.
    """
    for name in names:
        outer, _, inner = name.partition(".")
        value = columns.get(outer)
        if inner:
            value = value.get(inner) if isinstance(value, dict) else None
        if value is not None:
            return name, value
    return "", None


def task_of(row: Row) -> Task:
    """Return the task of a row; its id is "" if the row has none."""
    return row_task_of(row).task


def prompt_of(columns: Mapping[str, Any]) -> str:
    """Return the question of a row with a column `prompt`."""
    return _prompt(columns)[0]


def _prompt(columns: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the question, the system message or "", and the form of the prompt ("text" or "messages")."""
    value = columns.get("prompt")
    if "prompt" not in columns:
        raise ValueError(f"has no 'prompt'; {column_hint('prompt', columns)}")
    if isinstance(value, str):
        return _text(value, "column 'prompt'"), "", "text"
    if not isinstance(value, list) or not value:
        raise ValueError(f"column 'prompt' is {describe(value)}; expected text, or a list of messages")
    messages: list[tuple[str, str]] = []
    for at, message in enumerate(value, 1):
        where = f"column 'prompt', message {at},"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError(f'{where} is {describe(message)}; expected {{"role": "user", "content": "..."}}')
        messages.append((message["role"], _text(message.get("content"), f"{where} content")))
    roles = [role for role, _ in messages]
    if roles not in (["user"], ["system", "user"]):
        raise ValueError(
            f"column 'prompt' is a dialogue ({', '.join(roles[:6])}{', ...' if len(roles) > 6 else ''}); "
            "expected one user message, and at most one system message before it"
        )
    return messages[-1][1], messages[0][1] if len(messages) > 1 else "", "messages"


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} is {describe(value)}; expected text that is not empty")
    return value


def column_hint(name: str, columns: Mapping[str, Any]) -> str:
    """Return a text that names the row's columns and the one most like `name`."""
    close = get_close_matches(name, columns, n=1)
    columns_found = f"found {list_names(columns) or 'no column'}"
    return f"{columns_found}; is {close[0]!r} meant?" if close else columns_found


def _id(columns: Mapping[str, Any]) -> tuple[str, str]:
    source, value = first_of(columns, (*IDS, INDEX))
    if source == INDEX and not _is_name(value):
        return "", ""
    if source and not _is_name(value):
        raise ValueError(f"column {source!r} is {describe(value)}; expected text or a whole number")
    return source, str(value) if source else ""


def _is_name(value: Any) -> bool:
    return (isinstance(value, str) and bool(value.strip())) or (isinstance(value, int) and not isinstance(value, bool))


def label_of(columns: Mapping[str, Any]) -> tuple[str, str]:
    """Return the column that names the split, and the split; both are "" if there is none.

    Raise ValueError if it is unknown.
    """
    source, value = first_of(columns, SPLITS)
    if not source:
        return "", ""
    split = _SPLIT_OF_NAME.get(value.strip().lower()) if isinstance(value, str) else None
    if split is None:
        raise ValueError(f"column {source!r} is {describe(value)}; expected train, or eval (test, validation, dev)")
    return source, split
