"""`palaestra data FILE`: show a file of tasks as an environment would read it, or the rows that are wrong.

With `--env` that environment reads the file, since it may know other columns. Then its first tasks are opened: each
tool is called once with made-up arguments, and an empty answer is given. This shows whether the environment needs a
column that the file lacks. Left out: playing well, which needs an agent, and changing the file.
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import tyro

from palaestra import formats
from palaestra.cli.ids import resolve
from palaestra.cli.output import Reported, run_reported
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.opening import open_machine
from palaestra.envs.checks.cheats import arguments
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.transcript import transcript
from palaestra.envs.data.task_files import TaskFile, read_tasks
from palaestra.episode import Ending, Start, Task
from palaestra.errors import PalaestraError, TaskFileError, UsageError
from palaestra.plain import from_pairs
from palaestra.registry import check_options, registered_author
from palaestra.shortening import visible

PROBED = 3
"""Tasks of a split that are opened with --env."""
SHOWN = 600
"""Characters of a prompt, and of everything else that is shown of a task."""
MARGIN = 10


@dataclass(frozen=True)
class DataOptions(Reported):
    """Show a file of tasks, or find the rows that are wrong.

    The file is .jsonl, .json (a list), .csv or .parquet, with the columns prompt and answer, or those of TRL, verl and
    SkyRL. gymnasium.make(ID, tasks=FILE) plays the same file, and with split="all" the whole of it.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file of tasks."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV-ID")] = None
    """Open the file's first tasks in this environment, to see whether a column is missing."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE options for the environment of --env, such as search=FOLDER."""


def run(arguments: Sequence[str]) -> int:
    """Print the file. Return 1 if rows are wrong or the environment needs something that the file lacks."""
    return run_reported(DataOptions, "data", arguments, _look)


def _look(options: DataOptions, figures: dict[str, Any]) -> int:
    try:
        if options.env is None:
            _show(read_tasks(options.file), figures)
            return 0
        env_id = resolve(options.env)
        others = from_pairs(options.env_options, "env_options")
        file = _read_by(env_id, str(options.file), others)
    except TaskFileError as error:
        figures |= {"file": str(options.file), "wrong": error.count, "faults": list(error.faults)}
        print(f"{options.file}: {error.summary}", *(f"  {fault}" for fault in error.faults), sep="\n")
        if error.count > len(error.faults):
            print(f"  and {error.count - len(error.faults)} more")
        if options.env is None:
            print("with --env ENV-ID it is read by that environment, which may know other columns")
        return 1
    _show(file, figures)
    missing = list(_missing(file, env_id, others))
    figures["missed"] = missing
    print(f"\nIn {env_id.rpartition(':')[2]}", *(f"  {line}" for line in missing), sep="\n")
    if not missing:
        print("  its first tasks open, its tools and its reward find what they need")
    return 1 if missing else 0


def _read_by(env_id: str, path: str, others: Mapping[str, Any]) -> TaskFile:
    """Return the file with the tasks that the environment makes of it. Raise a TaskFileError that names the rows that
    the environment refuses.
    """
    tasks_by_split: dict[str, Sequence[Task]] = {}
    refused: dict[str, TaskFileError] = {}
    empty: list[UsageError] = []
    for split in ("train", "eval"):
        try:
            tasks_by_split[split] = _open(env_id, path, split, others).spec.tasks
        except TaskFileError as error:
            refused[split] = error
        except UsageError as error:  # The file has nothing for this split.
            empty.append(error)
    if refused:
        faults = tuple(dict.fromkeys(fault for error in refused.values() for fault in error.faults))
        summaries = {error.summary for error in refused.values()}
        messages = (
            summaries if len(summaries) == 1 else (f"for {split!r} {error.summary}" for split, error in refused.items())
        )
        # A row that is no task is refused for both splits; a task that cannot be judged, for its own.
        all_named = all(error.count == len(error.faults) for error in refused.values())
        count = len(faults) if all_named else max(error.count for error in refused.values())
        raise TaskFileError(path, "; ".join(messages), faults, count)
    if not tasks_by_split:
        raise empty[0]
    tasks = [(task, split) for split, tasks in tasks_by_split.items() for task in tasks]
    try:
        plain = read_tasks(path)
    except TaskFileError:  # Published columns, which only the environment knows.
        columns = Counter(name for task, _ in tasks for name in task.data)
        plain = TaskFile(path, (), (), labelled="", only="", columns=columns, read_as={})
    return replace(plain, tasks=tuple(task for task, _ in tasks), splits=tuple(split for _, split in tasks))


def _show(file: TaskFile, figures: dict[str, Any]) -> None:
    counts = Counter(file.splits)
    figures |= {"file": str(file.path), "tasks": len(file.tasks), "train": counts["train"], "eval": counts["eval"]}
    plural = "s" if len(file.tasks) > 1 else ""
    print(f"{file.path}: {len(file.tasks):,} task{plural}, {counts['train']:,} train and {counts['eval']:,} eval")
    if counts["train"] and not file.labelled:
        print("To play all of a published test: palaestra eval --split all")
    print("\nRead as" if file.read_as else "\nRead by the environment")
    for part, sources in file.read_as.items():
        _line(part, "; ".join(_source(file, part, source, count) for source, count in sources.items()))
    first = file.tasks[0]
    _line("data", ", ".join(_data_columns(file)) or "nothing else")
    figures |= {"columns": dict(file.columns), "notes": list(_remarks(file))}
    lengths = sorted(len(task.prompt) for task in file.tasks)
    _line("length", f"prompts of {lengths[0]:,} to {lengths[-1]:,} characters, in the middle {median(lengths):,.0f}")
    for remark in _remarks(file):
        _line("note", remark)
    print("\nThe first task")
    _line("id", first.id)
    _line("prompt", first.prompt)
    _line("answer", json.dumps(first.answer, ensure_ascii=False) if first.answer is not None else "none")
    _line("data", json.dumps(dict(first.data), ensure_ascii=False))


def _line(name: str, text: str) -> None:
    """Print one fact, with its further lines indented and without control characters."""
    text = visible(text if len(text) <= SHOWN else f"{text[:SHOWN]} [... {len(text):,} characters in all]")
    print(f"  {name:<{MARGIN - 2}}" + text.replace("\n", "\n" + " " * MARGIN))


def _source(file: TaskFile, part: str, source: str, count: int) -> str:
    """Return the source of a part of the tasks as text, with the number of rows if some rows lack it."""
    if part == "split" and not file.labelled:
        description = "all rows say train: " if source else "no column: "
        description += "about one prompt in five is held out, by its hash"
    elif part == "prompt":
        description = "column 'prompt'" + (", a list of messages" if source == "messages" else "")
    else:
        without = "the file's name and the row" if part == "id" else "none"
        description = f"column {source!r}" if source else without
    return description if count == len(file.tasks) else f"{description} ({count:,})"


def _data_columns(file: TaskFile) -> list[str]:
    """Return the columns in `Task.data`; a column that some rows lack comes with the share of rows that have it."""
    counts = Counter(name for task in file.tasks for name in task.data)
    every = len(file.tasks)
    return [name if count == every else f"{name} (in {count / every:.0%})" for name, count in counts.items()]


def _remarks(file: TaskFile) -> Iterator[str]:
    answers: dict[str, str] = {}
    again, differ = 0, set()
    for task in file.tasks:
        answer = json.dumps(task.answer, sort_keys=True)
        if task.prompt in answers:
            again += 1
            if answers[task.prompt] != answer:
                differ.add(task.prompt)
        answers.setdefault(task.prompt, answer)
    if again:
        yield f"{again:,} of the prompts repeat an earlier one; {len(answers):,} are different"
    if differ:
        yield f"prompts with more than one answer: {len(differ):,}, such as {min(differ)[:60]!r}"
    empty = sum(task.answer in ("", [], {}) for task in file.tasks)
    if empty:
        yield f"empty answers: {empty:,}; an empty answer may be right there"
    if all(task.answer is None for task in file.tasks) and file.read_as:
        yield "no task has an answer: the reward has to find one elsewhere"
    messages = sum("system" in task.data for task in file.tasks) if "messages" in file.read_as.get("prompt", ()) else 0
    if messages:
        yield f"system messages: {messages:,}, kept in Task.data['system']; the agent gets the environment's own"
    for split in ("train", "eval"):
        if split not in file.splits:
            yield f"no task is for {split!r}: an environment of that split is refused"


# In an environment


class _MissingKeyRecorder(dict[str, Any]):
    """A task's data that records the keys that were read and are missing."""

    def __init__(self, data: Mapping[str, Any], missing: set[str]) -> None:
        super().__init__(data)
        self.missing = missing

    def __missing__(self, name: str) -> Any:
        self.missing.add(str(name))
        raise KeyError(name)


def _missing(file: TaskFile, env_id: str, others: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words what the environment does not find in the first tasks of a split, and other errors on them."""
    split = "train" if "train" in file.splits else "eval"
    tasks = [task for task, where in zip(file.tasks, file.splits, strict=True) if where == split][:PROBED]
    machine = _open(env_id, file.path, split, others)
    missing: set[str] = set()
    first_tasks: dict[str, str] = {}
    with _quiet():
        try:
            for index, task in enumerate(tasks):
                for fault in _probe(machine, index, replace(task, data=_MissingKeyRecorder(task.data, missing))):
                    first_tasks.setdefault(fault, task.id)
        finally:
            release(machine)
    columns = ", ".join(map(repr, file.columns))
    for name in sorted(missing):
        yield f"the environment reads Task.data[{name!r}], and no such column is there; the file has {columns}"
    yield from (f"task {task_id}: {fault}" for fault, task_id in first_tasks.items())


def _open(env_id: str, path: str, split: str, others: Mapping[str, Any]) -> Machine:
    try:
        check_options(env_id, ("tasks",))
    except UsageError as error:
        raise UsageError(f"{env_id} takes no file of tasks") from error
    if registered_author(env_id) is None:
        raise UsageError(f"{env_id} takes no file of tasks: it is no ToolEnv")
    check_options(env_id, others)
    return open_machine(env_id, {**others, "tasks": path, "split": split})


def _probe(machine: Machine, index: int, task: Task) -> Iterator[str]:
    """Open a task, call each tool once and give an empty answer. Yield in words what goes wrong."""
    spec, called = machine.spec, set[str]()
    render = formats.get(spec.author.format).render
    try:
        events = settle(machine, machine.open({seat: Start(index, index, seat=seat) for seat in spec.seats}, task))
        if index == 0:
            print("\nAs the agent is asked\n" + transcript(next(iter(events.values())).messages))
        while machine.is_open:
            seat, event = next(iter(machine.pending_events.items()))
            new = [schema for schema in event.tools if schema["function"]["name"] not in called]
            calls = [formats.ParsedCall(schema["function"]["name"], arguments(schema)) for schema in new]
            called.update(call.name for call in calls)
            text = render(calls[: spec.max_turn_calls]) if calls and spec.max_turns > 1 else ""
            events = settle(machine, machine.act(seat, text))
        broken = next((event.fault for event in events.values() if event.ending is Ending.BROKEN), "")
        if broken:
            yield f"it breaks: {broken}"
    except PalaestraError as error:
        yield str(error)
    except Exception as error:  # The author's reward or toolkit; whatever it was, the file's owner has to know.
        yield f"{type(error).__name__}: {error}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the warnings in the log about tools that fail: this module reports the failures itself."""
    log = logging.getLogger("palaestra.envs")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        sys.stdout.flush()
