"""Files of problems in the columns that their makers use, for environments whose own column names are not enough.

A file with a column `prompt` is read as any other (`load_tasks`). Without one the question is found under the names
that an environment gives, such as `problem` (AIME), `question` (APPS) or `question_content` (LiveCodeBench), and all
other columns are in `Task.data`. The split is found as in `task_files`. Every row is looked at before one is used.
Left out: files of several parts, and addresses on a network.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.envs.core.tasks import split_of
from palaestra.envs.data.rows import Row, named, read_rows
from palaestra.envs.data.task_files import MAX_FAULTS, WHOLE, check_part, divided, label_of, load_tasks, whole
from palaestra.episode import Task
from palaestra.errors import TaskFileError, UsageError

_IDS = ("id", "ID", "task_id", "question_id", "problem_id")
_ANSWERS = ("answer", "Answer", "ground_truth")


def load_problems(
    path: str, split: str, questions: Sequence[str], finish: Callable[[Task], Task] = lambda task: task
) -> list[Task]:
    """The tasks of a split, or of `all` of the file.

    `finish` completes a task from its data, or raises a ValueError that says what is wrong.
    """
    check_part(split)
    unit, rows = read_rows(path)
    first = next(iter(rows), None)
    faults: list[str] = []
    if first is None or "prompt" in first.columns or first.fault:
        found = [(str(at), task, split) for at, task in enumerate(load_tasks(path, split), start=1)]
        unit = "task"
    else:
        found = _published(path, unit, questions, faults)
    known, tasks = len(found) + len(faults), []
    for number, task, where in found:
        if split in (where, WHOLE):
            try:
                tasks.append(finish(task))
            except ValueError as error:
                faults.append(f"{unit} {number} ({task.id or task.prompt[:40]!r}): {error}")
    if faults:
        plural = f"{unit}s are" if known > 1 else f"{unit} is"
        raise TaskFileError(path, f"{len(faults)} of {known} {plural} wrong", faults[:MAX_FAULTS], len(faults))
    if not tasks:
        raise UsageError(
            f"{path}: none of its {known} questions is for the {split!r} split; add a column 'split'{whole(split)}"
        )
    return tasks


def _published(path: str, unit: str, questions: Sequence[str], faults: list[str]) -> list[tuple[str, Task, str]]:
    """The rows as tasks, each with its number and its split; what is wrong with the others is added to `faults`."""
    found: list[tuple[str, Task]] = []
    labels: list[str] = []
    asked: dict[str, tuple[int, str]] = {}
    for row in read_rows(path)[1]:
        name = _first(row.columns, questions)
        prompt = row.columns.get(name)
        fault = row.fault or ("" if isinstance(prompt, str) and prompt.strip() else _missing(row, questions))
        try:
            label = label_of(row.columns)[1]
        except ValueError as error:
            fault = fault or str(error)
        if fault:
            faults.append(f"{unit} {row.number} {fault}")
            continue
        task_id = str(row.columns.get(_first(row.columns, _IDS)) or f"{unit} {row.number}")
        answer = row.columns.get(_first(row.columns, _ANSWERS))
        data = {key: value for key, value in row.columns.items() if key != name}
        before, other = asked.setdefault(str(prompt), (row.number, label))
        if label != other:
            said = f"is for {label!r}, but {unit} {before} asks the same for {other!r}: what is trained on is no test"
            faults.append(f"{unit} {row.number} {said}")
            continue
        found.append((str(row.number), Task(prompt=str(prompt), answer=answer, id=task_id, data=data)))
        labels.append(label)
    splits = divided(labels, [split_of(task.prompt) for _, task in found])
    return [(*one, split) for one, split in zip(found, splits, strict=True)]


def _first(columns: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((name for name in names if columns.get(name) is not None), "")


def _missing(row: Row, questions: Sequence[str]) -> str:
    names = ", ".join(map(repr, ("prompt", *questions)))
    return f"has no question; expected one of the columns {names}, found {named(row.columns)}"
