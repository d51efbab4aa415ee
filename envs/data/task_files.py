"""Tasks from a file: JSON lines, a JSON list, CSV or parquet, in our own columns or in those of TRL, verl and SkyRL.

    prompt    text, or a list of messages: one user message, before it at most one system message
    answer    reward_model.ground_truth (verl), reward_spec.ground_truth (SkyRL), answer, ground_truth or solution:
              the first of these that a row has
    id        id, task_id or extra_info.index; else FILE:LINE
    split     split or extra_info.split: train, or one of eval, test, validation and their short forms

Every column but the prompt, and an `answer` that was used, is in `Task.data`, unchanged. A system message is there as
"system": the environment decides what an agent is told beyond the question. Where no row names a split, or all of them
say train, a fifth is held out by prompt, as in procedural sets. The split `all` is the whole file, for tests that were
published as one. All rows are checked before one is used.
Left out: longer dialogues, images, several files, addresses on a network.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, TypeVar

from palaestra.envs.core.tasks import check_split, split_of
from palaestra.envs.core.transcript import visible
from palaestra.envs.data.rows import Row, describe, list_names, read_rows
from palaestra.episode import Task
from palaestra.errors import TaskFileError, UsageError

ANSWERS = ("reward_model.ground_truth", "reward_spec.ground_truth", "answer", "ground_truth", "solution")
IDS = ("id", "task_id")
INDEX = "extra_info.index"
SPLITS = ("split", "extra_info.split")
WHOLE = "all"
"""Split that is the whole file, whatever its rows say: to play a published test, not for training."""
MAX_FAULTS = 50
"""Largest number of faults that are described; the others are counted."""
_NAMES = {
    "train": ("train", "training"),
    "eval": ("eval", "evaluation", "test", "testing", "validation", "valid", "val", "dev"),
}
RowT = TypeVar("RowT")
_SPLIT_OF_NAME = {name: split for split, names in _NAMES.items() for name in names}


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of tasks that was read to its end and has no wrong rows."""

    path: str
    tasks: tuple[Task, ...]
    splits: tuple[str, ...]
    """Split of each task."""
    labelled: str
    """Column that decides the split; "" where the prompt does."""
    only: str
    """Split that all rows name, or ""."""
    columns: Mapping[str, int]
    """Number of rows that have each column."""
    read_as: Mapping[str, Mapping[str, int]]
    """Number of rows by source column, for each of prompt, answer, id and split."""

    def of(self, split: str) -> list[Task]:
        """Return the tasks of a split; raise UsageError where it is empty."""
        check_part(split)
        if split == WHOLE:
            return list(self.tasks)
        tasks = [task for task, where in zip(self.tasks, self.splits, strict=True) if where == split]
        if tasks:
            return tasks
        rows = f"all {len(self.tasks)}" if len(self.tasks) > 1 else "the only one"
        why = f"column {self.labelled!r} says {self.only!r} in {rows}"
        raise none_for(self.path, split, why if self.labelled else f"{rows} fell into the other split by its hash")


def check_part(split: str) -> None:
    """Raise an error for a name that is neither a split nor `all`."""
    if split != WHOLE:
        check_split(split)


def none_for(path: str, split: str, why: str) -> UsageError:
    """Return the error for a file that has no row for a split."""
    every = f"; split={WHOLE!r} plays the whole file" if split == "eval" else ""
    advice = f"add rows, or a column 'split' that says train or eval{every}"
    return UsageError(f"{path}: no row is for {split!r}; {why}: {advice}")


def load_tasks(path: str | os.PathLike[str], split: str = "train") -> Sequence[Task]:
    """Return the tasks of one split of a file, or of `all`. Raise TaskFileError where any row is wrong."""
    check_part(split)
    return read_tasks(path).of(split)


def read_tasks(path: str | os.PathLike[str]) -> TaskFile:
    """Read a file of tasks to its end; raise TaskFileError that names the rows that are wrong."""
    reading = TaskFileScan(path)
    entries = [entry for _, entry in reading.of(_entry)]
    if not reading.rows:
        example = '{"prompt": "2 + 2?", "answer": "4"}'
        raise TaskFileError(reading.path, f"it holds no task; expected one a line, such as {example}")
    _compare(entries, reading)
    reading.refuse()
    return _sound(entries, reading)


class TaskFileScan:
    """One pass over a file, which counts rows by column and collects faults of rows, the first MAX_FAULTS as text."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.rows, self.columns = os.fspath(path), 0, Counter[str]()
        self.unit, self._rows = read_rows(path)
        self._faults: list[tuple[int, str]] = []
        self._count, self._wrong = 0, set[int]()
        self._first_by_prompt: dict[str, tuple[int, str]] = {}

    def of(self, read: Callable[[Row], RowT]) -> Iterator[tuple[int, RowT]]:
        """Yield the number of each row and the result of `read`; a ValueError of `read` is collected as a fault."""
        for row in self._rows:
            self.rows += 1
            self.columns.update(row.columns.keys())
            try:
                if row.fault:
                    raise ValueError(row.fault)
                yield row.number, read(row)
            except ValueError as error:
                self.add(row.number, str(error))

    def add(self, number: int, text: str) -> None:
        self._count += 1
        self._wrong.add(number)
        if len(self._faults) < MAX_FAULTS:
            self._faults.append((number, f"{self.unit} {number} {visible(text)}".replace("\n", "\\n")))

    def check_asked(self, number: int, prompt: str, label: str) -> None:
        """Collect a fault where another row has the same prompt in the other split."""
        before, other = self._first_by_prompt.setdefault(prompt, (number, label))
        if label != other:
            message = f"asks the same for {other!r}: what is trained on is no test"
            self.add(number, f"is for {label!r}, but {self.unit} {before} {message}")

    def fault(self) -> TaskFileError | None:
        """Return the error with all faults, or None."""
        if not self._count:
            return None
        wrong = f"{len(self._wrong)} of {self.rows} {'rows are' if self.rows > 1 else 'row is'} wrong"
        return TaskFileError(self.path, wrong, [text for _, text in sorted(self._faults)], self._count)

    def refuse(self) -> None:
        """Raise TaskFileError where any row is wrong."""
        if (fault := self.fault()) is not None:
            raise fault


@dataclass(slots=True)
class _Entry:
    """One row as a task, and the columns of its parts."""

    number: int
    task: Task
    label: str
    """Split that the row names, or ""."""
    sources: dict[str, str]
    """Columns of prompt, answer, id and split; "" for a missing part."""


# One row


def _entry(row: Row) -> _Entry:
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
    return _Entry(row.number, task, label, sources)


def first_of(columns: Mapping[str, Any], names: Iterable[str]) -> tuple[str, Any]:
    """Return the first of these columns that is not null, with its value; ("", None) where all are missing."""
    for name in names:
        outer, _, inner = name.partition(".")
        value = columns.get(outer)
        if inner:
            value = value.get(inner) if isinstance(value, dict) else None
        if value is not None:
            return name, value
    return "", None


def task_of(row: Row) -> Task:
    """Return the task of a row, whatever the other rows say; its id is "" where the row has none."""
    return _entry(row).task


def prompt_of(columns: Mapping[str, Any]) -> str:
    """Return the question of a row with a column `prompt`."""
    return _prompt(columns)[0]


def _prompt(columns: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the question, the system message or "", and the form of the prompt ("text" or "messages")."""
    value = columns.get("prompt")
    if "prompt" not in columns:
        raise ValueError(f"has no 'prompt'; {_nearest('prompt', columns)}")
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


def _nearest(name: str, columns: Mapping[str, Any]) -> str:
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
    """Return the column that names the split, and the split ("" and "" without one); raise ValueError if unknown."""
    source, value = first_of(columns, SPLITS)
    if not source:
        return "", ""
    split = _SPLIT_OF_NAME.get(value.strip().lower()) if isinstance(value, str) else None
    if split is None:
        raise ValueError(f"column {source!r} is {describe(value)}; expected train, or eval (test, validation, dev)")
    return source, split


# All rows


def _compare(entries: Sequence[_Entry], reading: TaskFileScan) -> None:
    """Collect faults that show only when rows are compared."""
    for part in ("answer", "split"):
        other = next((entry.sources[part] for entry in entries if entry.sources[part]), "")
        for entry in entries:
            if other and not entry.sources[part]:
                close = "" if part != "answer" else f"; {_nearest('answer', entry.task.data)}"
                reading.add(entry.number, f"has no {part}; other rows have one in {other!r}{close}")
    first: dict[str, _Entry] = {}
    for entry in entries:
        if entry.sources["id"] in IDS and (before := first.setdefault(entry.task.id, entry)) is not entry:
            reading.add(entry.number, f"has the id {entry.task.id[:80]!r} of {reading.unit} {before.number}")
    for entry in entries:
        reading.check_asked(entry.number, entry.task.prompt, entry.label)


def divided(labels: Sequence[str], otherwise: Sequence[str]) -> tuple[str, ...]:
    """Return the split of each row: its label, or `otherwise` for all rows where no row has a label except train."""
    if set(labels) <= {"", "train"}:
        return tuple(otherwise)
    return tuple(label or other for label, other in zip(labels, otherwise, strict=True))


def _sound(entries: Sequence[_Entry], reading: TaskFileScan) -> TaskFile:
    ids = [entry.task.id for entry in entries if entry.task.id]
    unique = len(set(ids)) == len(ids)  # An index often starts again with each source or split.
    file = os.path.basename(reading.path)
    tasks = []
    for entry in entries:
        if not entry.task.id or (entry.sources["id"] == INDEX and not unique):
            entry.task = replace(entry.task, id=f"{file}:{entry.number}")
            entry.sources["id"] = ""
        tasks.append(entry.task)
    labels = {entry.label for entry in entries}
    by_label = labels not in ({""}, {"train"})
    return TaskFile(
        path=reading.path,
        tasks=tuple(tasks),
        splits=divided([entry.label for entry in entries], [split_of(entry.task.prompt) for entry in entries]),
        labelled=entries[0].sources["split"] if by_label else "",
        only=next(iter(labels)) if len(labels) == 1 else "",
        columns=dict(reading.columns),
        read_as={part: dict(Counter(entry.sources[part] for entry in entries)) for part in entries[0].sources},
    )
