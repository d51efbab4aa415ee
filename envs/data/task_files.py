"""Reads tasks from a file: JSON lines, a JSON list, CSV or parquet, in our columns or in those of TRL, verl and SkyRL.

    prompt    text, or a list of messages: one user message, before it at most one system message
    answer    reward_model.ground_truth (verl), reward_spec.ground_truth (SkyRL), answer, ground_truth or solution:
              the first of these that a row has
    id        id, task_id or extra_info.index; else FILE:LINE
    split     split or extra_info.split: train, or one of eval, test, validation and their short forms

`Task.data` contains every column unchanged, except the prompt and an `answer` that was used. It contains a system
message as "system": the environment decides what an agent is told beyond the question. If no row names a split, or all
of them say train, the hash of the prompt makes about a fifth of the rows eval, as in procedural sets. The split `all`
is the whole file, for published tests. All rows are checked before one is used. Left out: longer dialogues, images,
several files, addresses on a network.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from palaestra.envs.core.tasks import check_split, split_of
from palaestra.envs.data.rows import Row, read_rows
from palaestra.envs.data.task_rows import IDS, INDEX, RowTask, column_hint, row_task_of
from palaestra.episode import Task
from palaestra.errors import TaskFileError, UsageError
from palaestra.shortening import visible

WHOLE = "all"
"""Name of the split that is the whole file, whatever its rows say: for playing a published test, not for training."""
MAX_FAULTS = 50
"""Largest number of faults that are described; the others are counted."""
RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of tasks that was read to its end and has no wrong rows."""

    path: str
    tasks: tuple[Task, ...]
    splits: tuple[str, ...]
    """Split of each task."""
    labelled: str
    """Column that decides the split; "" if the prompt's hash decides it."""
    only: str
    """Split that all rows name, or ""."""
    columns: Mapping[str, int]
    """Number of rows that have each column."""
    read_as: Mapping[str, Mapping[str, int]]
    """Number of rows by source column, for each of prompt, answer, id and split."""

    def of(self, split: str) -> list[Task]:
        """Return the tasks of a split; raise UsageError if it has none."""
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
    """Raise UsageError if a name is neither a split nor `all`."""
    if split != WHOLE:
        check_split(split)


def none_for(path: str, split: str, why: str) -> UsageError:
    """Return the error for a file that has no row for a split."""
    every = f"; split={WHOLE!r} plays the whole file" if split == "eval" else ""
    advice = f"add rows, or a column 'split' that says train or eval{every}"
    return UsageError(f"{path}: no row is for {split!r}; {why}: {advice}")


def load_tasks(path: str | os.PathLike[str], split: str = "train") -> Sequence[Task]:
    """Return the tasks of one split of a file, or of `all`. Raise TaskFileError if any row is wrong."""
    check_part(split)
    return read_tasks(path).of(split)


def read_tasks(path: str | os.PathLike[str]) -> TaskFile:
    """Read a file of tasks to its end; raise a TaskFileError that names the wrong rows."""
    reading = TaskFileScan(path)
    entries = [entry for _, entry in reading.of(row_task_of)]
    if not reading.rows:
        example = '{"prompt": "2 + 2?", "answer": "4"}'
        raise TaskFileError(reading.path, f"it holds no task; expected one a line, such as {example}")
    _compare(entries, reading)
    reading.refuse()
    return _sound(entries, reading)


class TaskFileScan:
    """One pass over a file.

    It counts rows by column and collects faults of rows, the first MAX_FAULTS of them as text.
    """

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
        """Collect a fault if an earlier row has the same prompt in the other split."""
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
        """Raise TaskFileError if any row is wrong."""
        if (fault := self.fault()) is not None:
            raise fault


def _compare(entries: Sequence[RowTask], reading: TaskFileScan) -> None:
    """Collect faults between rows: a part that only some rows have, a repeated id, or a prompt in both splits."""
    for part in ("answer", "split"):
        other = next((entry.sources[part] for entry in entries if entry.sources[part]), "")
        for entry in entries:
            if other and not entry.sources[part]:
                close = "" if part != "answer" else f"; {column_hint('answer', entry.task.data)}"
                reading.add(entry.number, f"has no {part}; other rows have one in {other!r}{close}")
    first: dict[str, RowTask] = {}
    for entry in entries:
        if entry.sources["id"] in IDS and (before := first.setdefault(entry.task.id, entry)) is not entry:
            reading.add(entry.number, f"has the id {entry.task.id[:80]!r} of {reading.unit} {before.number}")
    for entry in entries:
        reading.check_asked(entry.number, entry.task.prompt, entry.label)


def divided(labels: Sequence[str], otherwise: Sequence[str]) -> tuple[str, ...]:
    """Return the split of each row: its label, or its entry in `otherwise` if it has none.

    If no row has a label except train, `otherwise` decides for all rows.
    """
    if set(labels) <= {"", "train"}:
        return tuple(otherwise)
    return tuple(label or other for label, other in zip(labels, otherwise, strict=True))


def _sound(entries: Sequence[RowTask], reading: TaskFileScan) -> TaskFile:
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
