"""Checks of tasks: can they be recorded, told apart, judged and won, and are there enough different ones?

Left out: playing them (`trials`), and the answers that must not win (`cheats`).
"""

import inspect
import json
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from palaestra.envs.checks.at_once import answer, demonstrated
from palaestra.envs.checks.cheats import dressed, sampled
from palaestra.envs.checks.findings import Groundless, Noted, Skipped, require, require_same
from palaestra.envs.checks.trials import EPISODES, MIN_EPISODES, Chair, Subject, require_unbroken
from palaestra.envs.rewards.answer import MARK
from palaestra.episode import Event, Task
from palaestra.errors import TaskFileError, UsageError
from palaestra.plain import from_plain, to_plain

_JUDGED_BY_ANSWER = {"Attempt.answer", "Attempt.task", "Task.answer"}
"""Attributes that a reward reads if it only compares the answer with the expected one."""
_FEW = 50
"""Number of prompts below which a success rate is uncertain by more than 14 points."""


def tasks_are_sound(subject: Subject) -> None:
    """Require that a task is the same each time it is drawn, that it can be recorded, and that not all prompts are
    equal."""
    with subject.opened() as machine:
        spec = machine.spec
        tasks = [spec.task(index) for index in range(min(len(spec.tasks), EPISODES))]
        for index, task in enumerate(tasks):
            _require_plain("Task.answer", task.answer, index)
            for key, value in task.data.items():
                _require_plain(f"Task.data[{key!r}]", value, index)
            problem = f"task {index} is another each time it is drawn, take randomness from rng only"
            require_same(task, spec.task(index), "Task", problem, kind=Groundless)
        prompts = {task.prompt for task in tasks}
        require(
            len(tasks) < 2 or len(prompts) > 1,
            f"the first {len(tasks)} tasks all have the prompt {next(iter(prompts))[:60]!r}, and tasks are told apart "
            "by their prompts; draw from rng what differs, and write it into the prompt",
            Groundless,
        )


def splits_disjoint(subject: Subject) -> None:
    """Require that no prompt is in both splits. Note if a split has few prompts, or if both splits share values of
    Task.data."""
    prompts: list[set[str]] = []
    worlds: list[set[str]] = []
    notes: list[str] = []
    for split in ("train", "eval"):
        with subject.opened(split=split) as machine:
            try:
                tasks = machine.spec.tasks
            except TaskFileError:
                raise
            except UsageError as error:  # A file without a task for this split.
                raise Skipped(str(error)) from error
            split_tasks = list(sampled(tasks))
        prompts.append({task.prompt for task in split_tasks})
        worlds.append({json.dumps(to_plain(task.data), sort_keys=True) for task in split_tasks if task.data})
        if len(prompts[-1]) < _FEW:
            notes.append(_few(split, len(prompts[-1]), len(split_tasks)))
    shared = prompts[0] & prompts[1]
    require(not shared, f"{len(shared)} prompts are in both splits, such as {next(iter(shared), '')!r}")
    if both := worlds[0] & worlds[1]:
        notes.append(
            f"{len(both)} of the {len(worlds[1])} different Task.data of eval are in train too, under other prompts: "
            "if that is the world behind a task, success on eval is not success in a world that was never seen"
        )
    if notes:
        raise Noted("; ".join(notes))


def _few(split: str, count: int, task_count: int) -> str:
    """Return a note: how many different prompts the split has, and what that means for the success rate."""
    message = f"{split} has {count} different prompts in {task_count} tasks"
    if split == "train":
        return f"{message}, few enough to learn by heart: success on train alone then shows nothing"
    return f"{message}: however many episodes are played, success on eval is uncertain by {98 / sqrt(count):.0f} points"


def _require_plain(name: str, value: Any, index: int) -> None:
    try:
        restored = from_plain(to_plain(value, name))
    except UsageError as error:
        require(False, f"task {index}: {error}", Groundless)
    try:
        bool(restored == value)
    except ValueError:  # An array does not say whether it equals another.
        kind = "is a numpy array" if isinstance(value, np.ndarray) else "holds an array"
        message = f"task {index}: {name} {kind}, and tasks with arrays cannot be compared; write a list: array.tolist()"
        require(False, message, Groundless)


def tasks_can_be_judged(subject: Subject) -> None:
    """Require that every task has an answer or data to judge by, and that some task is won by its own answer."""
    for chair in subject.chairs():
        won, tasks = False, dict[int, Task]()
        for index in range(min(len(chair.spec.tasks), MIN_EPISODES if subject.slow else EPISODES)):
            task = chair.spec.task(index)
            require(
                task.answer is not None or task.data,
                f"task {index} ({task.prompt[:60]!r}) has neither answer nor data, so nothing to be judged by; "
                "return Task(prompt, answer=...)",
            )
            if isinstance(task.answer, str | int | float | np.generic):
                tasks[index] = task
                for text in (str(task.answer), f"{MARK} {task.answer}"):
                    event = answer(subject, chair, text, index)
                    require_unbroken(event)
                    won |= _wins(event)
        for index, task in list(tasks.items())[:MIN_EPISODES]:
            forms = (f"\\boxed{{{task.answer}}}", f"```\n{task.answer}\n```", dressed(str(task.answer)))
            won = won or any(_wins(answer(subject, chair, form, index)) for form in forms)
        if tasks and not won and not _demonstrated(subject, chair):
            _explain(subject, chair, next(iter(tasks)))


def _wins(event: Event) -> bool:
    return event.parts.get("success", 0.0) > 0.0


def _demonstrated(subject: Subject, chair: Chair) -> bool:
    """Return whether the demonstrator wins a task."""
    return subject.demonstrator is not None and any(map(_wins, demonstrated(subject, chair, subject.demonstrator)))


def _explain(subject: Subject, chair: Chair, index: int) -> None:
    """Raise a finding that explains why no task is won by its own answer; raise Skipped if the reason is unknown."""
    task = chair.spec.task(index)
    text, kind = str(task.answer), type(task.answer).__name__
    require(
        isinstance(task.answer, str) or not _wins_as_text(chair, task),
        f"no answer can be right: the answer of task {task.id} is {kind} {text[:60]} and attempt.answer is text; "
        "compare with str(attempt.task.answer), or write answer=str(...)",
    )
    forms = f"said plainly, behind {MARK!r}, boxed or fenced"
    require(
        not isinstance(task.answer, str) or not _compares_texts(chair, answer(subject, chair, text, index)),
        f"no task is won by its own answer, {forms}, such as {text[:60]!r} in task {task.id}; let reward take "
        "task.answer as it is written, or register a demonstrator that shows what wins",
    )
    raise Skipped(f"no task is won by its own answer, {forms}; a demonstrator would show whether it can be won")


def _wins_as_text(chair: Chair, task: Task) -> bool:
    """Return whether the task's answer wins if the task holds it as text, not as a number."""
    text = str(task.answer)
    try:
        chair.begin(problem=replace(task, answer=text))
        return _wins(chair.say(text))
    except Exception:  # A reward that expects a number may raise anything: then the type is not the fault.
        chair.machine.discard()
        return False


class _ReadRecorder:
    """Wrapper of an attempt or a task that records which attributes are read."""

    def __init__(self, inner: Any, read: set[str]) -> None:
        self._inner, self._read = inner, read

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        self._read.add(f"{type(self._inner).__name__}.{name}")
        return _ReadRecorder(value, self._read) if isinstance(value, Task) else value


def _compares_texts(chair: Chair, event: Event) -> bool:
    """Return whether the reward of an episode reads only the answer and the expected one, and needs no environment."""
    reward, read = inspect.getattr_static(type(chair.author), "reward"), set[str]()
    try:
        returned = reward(None, _ReadRecorder(event.attempt, read))
    except Exception:  # It needs its environment, or a real attempt: it judges by more than two texts.
        return False
    compares: bool = {"Attempt.answer", "Task.answer"} <= read <= _JUDGED_BY_ANSWER
    return compares and not inspect.iscoroutine(returned)
