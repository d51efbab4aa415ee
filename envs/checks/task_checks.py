"""Checks of an environment's tasks: can they be written down, told apart, judged, and won?

Left out: who plays them (`trials`), and answers that must not win (`cheats`).
"""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np

from palaestra.envs.checks.cheats import dressed
from palaestra.envs.checks.findings import Groundless, Skipped, difference, require
from palaestra.envs.checks.trials import EPISODES, FEWEST, Opened, begun, has_demonstrator, successes
from palaestra.envs.core.env import ToolEnv
from palaestra.envs.rewards.answer import MARK
from palaestra.episode import Attempt, Ending, Event, Start, Task
from palaestra.errors import UsageError
from palaestra.plain import from_plain, to_plain
from palaestra.registry import demonstrator

_JUDGED_BY_ANSWER = {"attempt.answer", "attempt.task", "task.answer"}
"""What a reward reads that compares what was said with what was expected, and looks at nothing else."""


def tasks_are_sound(env_id: str) -> None:
    """A task is the same whenever it is drawn, can be written to a record, and differs from the others."""
    with Opened(env_id) as env:
        tasks = [env._task_at(index) for index in range(min(len(env.tasks), EPISODES))]
        for index, task in enumerate(tasks):
            _require_plain("Task.answer", task.answer, index)
            for key, value in task.data.items():
                _require_plain(f"Task.data[{key!r}]", value, index)
            found = difference(task, env._task_at(index), "Task")
            require(
                not found,
                f"task {index} is another each time it is drawn, take randomness from rng only: {found}",
                Groundless,
            )
        prompts = {task.prompt for task in tasks}
        require(
            len(tasks) < 2 or len(prompts) > 1,
            f"the first {len(tasks)} tasks all have the prompt {next(iter(prompts))[:60]!r}, and tasks are told apart "
            "by their prompts; draw from rng what differs, and write it into the prompt",
            Groundless,
        )


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


def tasks_can_be_judged(env_id: str) -> None:
    """Every task has an answer, or data that a reward can judge by; the expected answer itself is scored, and wins."""
    with Opened(env_id) as env:
        won, tasks = False, list[Task]()
        for index in range(min(len(env.tasks), EPISODES)):
            task = env._task_at(index)
            require(
                task.answer is not None or task.data,
                f"task {index} ({task.prompt[:60]!r}) has neither answer nor data, so nothing to be judged by; "
                "return Task(prompt, answer=...)",
            )
            if isinstance(task.answer, str | int | float | np.generic):
                tasks.append(task)
                for text in (str(task.answer), f"{MARK} {task.answer}"):
                    event = _answered(env, task, text)
                    require(event.ending is not Ending.BROKEN, f"its answer could not be judged: {event.fault}")
                    won |= _wins(event)
        for task in tasks[:FEWEST]:
            forms = (f"\\boxed{{{task.answer}}}", f"```\n{task.answer}\n```", dressed(str(task.answer)))
            won = won or any(_wins(_answered(env, task, form)) for form in forms)
        if tasks and not won and not _demonstrated(env_id, env):
            _explain(env, tasks[0])


def _answered(env: ToolEnv, task: Task, text: str) -> Event:
    """The end of an episode of that task in which the agent says this and no more."""
    begun(env, Start(0, seed=0), task)
    return env.take(text)


def _wins(event: Event) -> bool:
    return event.parts.get("success", 0.0) > 0.0


def _demonstrated(env_id: str, env: ToolEnv) -> bool:
    """Whether play by rule has shown that a task can be won."""
    if not has_demonstrator(env_id):
        return False
    return any(won > 0.0 for won in successes(env, demonstrator(env_id)))


def _explain(env: ToolEnv, task: Task) -> None:
    """Why no task is won by its own answer, where that can be told."""
    text, kind = str(task.answer), type(task.answer).__name__
    require(
        isinstance(task.answer, str) or not _wins_as_text(env, task),
        f"no answer can be right: the answer of task {task.id} is {kind} {text[:60]} and attempt.answer is text; "
        "compare with str(attempt.task.answer), or write answer=str(...)",
    )
    forms = f"said plainly, behind {MARK!r}, boxed or fenced"
    require(
        not isinstance(task.answer, str) or not _compares_texts(env, task),
        f"no task is won by its own answer, {forms}, such as {text[:60]!r} in task {task.id}; let reward take "
        "task.answer as it is written, or register a demonstrator that shows what wins",
    )
    raise Skipped(f"no task is won by its own answer, {forms}; a demonstrator would show whether it can be won")


def _wins_as_text(env: ToolEnv, task: Task) -> bool:
    """Whether the answer wins once the task expects it as text."""
    text = str(task.answer)
    try:
        return _wins(_answered(env, replace(task, answer=text), text))
    except Exception:  # A reward that wants a number may raise anything: then the type is not what is wrong.
        env.discard()
        return False


def _compares_texts(env: ToolEnv, task: Task) -> bool:
    """Whether the reward looks at what was said and what was expected alone, and needs no environment for it."""
    reward = inspect.getattr_static(type(env), "reward")
    attempt = _answered(env, task, str(task.answer)).attempt
    if not inspect.isfunction(reward) or inspect.iscoroutinefunction(reward) or attempt is None:
        return False
    read: set[str] = set()

    class WatchedTask(Task):
        def __getattribute__(self, name: str) -> Any:
            read.add(f"task.{name}")
            return object.__getattribute__(self, name)

    class WatchedAttempt(Attempt):
        def __getattribute__(self, name: str) -> Any:
            read.add(f"attempt.{name}")
            return object.__getattribute__(self, name)

    watched_task = WatchedTask(task.prompt, task.answer, task.id, task.data)
    watched = WatchedAttempt(watched_task, attempt.messages, attempt.answer, attempt.calls, attempt.turns)
    read.clear()
    try:
        reward(None, watched)
    except Exception:  # It needs its environment, or an attempt as it is: it judges by more than two texts.
        return False
    return {"attempt.answer", "task.answer"} <= read <= _JUDGED_BY_ANSWER
