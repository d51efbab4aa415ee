"""Episodes that the checks of `palaestra check` are made of: played by a demonstrator, a cheat or a fixed script.

Left out: what they must come to (`check`).
"""

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np

from palaestra import formats
from palaestra.envs.checks.cheats import Cheat, arguments, question
from palaestra.envs.checks.findings import difference, require
from palaestra.envs.core.env import ToolEnv
from palaestra.envs.core.settings import check_limits
from palaestra.episode import Attempt, Ending, Event, Message, Start, Task
from palaestra.errors import Broken, EnvironmentDefect, UnknownTask, UsageError
from palaestra.registry import Demonstrator, demonstrator

EPISODES = 24
"""Episodes of each measurement: enough to see a cheat, short enough for a habit."""
FEWEST = 4
CHEAT_SECONDS = 3.0
"""What a cheat may take for more than the fewest episodes."""

_ADDRESS = re.compile(r"<[^\n]{1,200} at 0x[0-9a-f]{6,}>")
_HAND_ON = "an __init__ of its own hands on what it is given: def __init__(self, **kwargs): super().__init__(**kwargs)"


def make(env_id: str, **kwargs: Any) -> ToolEnv:
    """The environment as itself, without Gymnasium's wrappers."""
    try:
        env = gymnasium.make(env_id, **kwargs).unwrapped
    except UsageError as error:
        if not any(f"takes no option {name!r}" in str(error) for name in kwargs):
            raise
        raise EnvironmentDefect(f"{str(error).partition(';')[0]}; {_HAND_ON}") from None
    kind = type(env).__name__
    if not isinstance(env, ToolEnv):
        raise EnvironmentDefect(f"{env_id} is a {kind}; palaestra checks subclasses of ToolEnv")
    check_limits(env)  # A constructor may have set some.
    if "split" in kwargs and env.split != kwargs["split"]:
        raise EnvironmentDefect(f"{kind}(split={kwargs['split']!r}) has the split {env.split!r}; {_HAND_ON}")
    return env


class Opened:
    """An environment that is closed behind us, with its tools' failures kept out of the log."""

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        self._env = make(env_id, **kwargs)
        self._log = logging.getLogger("palaestra.envs")

    def __enter__(self) -> ToolEnv:
        self._level = self._log.level
        self._log.setLevel(logging.ERROR)
        return self._env

    def __exit__(self, *_: object) -> None:
        self._log.setLevel(self._level)
        self._env.close()


def begun(env: ToolEnv, start: Start, problem: Task | None = None) -> Event:
    """Open an episode; Broken where its toolkits do not start."""
    event = env.begin(start, problem)
    require_unbroken([event.fault])
    return event


def require_unbroken(faults: Sequence[str]) -> None:
    """None of these episodes was failed by the infrastructure."""
    fault = next(filter(None, faults), "")
    if fault:
        raise Broken(fault)


def has_demonstrator(env_id: str) -> bool:
    """Whether a script that plays by rule was registered."""
    try:
        demonstrator(env_id)
    except UsageError:
        return False
    return True


def player_of(env_id: str) -> Demonstrator:
    """The demonstrator, and one who repeats the question where it does not know how to play, or is none."""
    known = demonstrator(env_id) if has_demonstrator(env_id) else None

    def play(messages: list[Message], rng: np.random.Generator) -> str:
        try:
            return question(messages) if known is None else known(messages, rng)
        except UnknownTask:
            return question(messages)

    return play


def cheats_of(env: ToolEnv, cheat: Cheat) -> list[tuple[float, float]]:
    """Success and reward of episodes of a cheat: fewer where the tools that it calls are slow."""
    played: list[tuple[float, float]] = []
    until = time.monotonic() + CHEAT_SECONDS
    while len(played) < EPISODES and (len(played) < FEWEST or time.monotonic() < until):
        played.append(_cheated(env, cheat, len(played)))
    return played


def _cheated(env: ToolEnv, cheat: Cheat, seed: int) -> tuple[float, float]:
    _, info = env.reset(seed=seed)
    messages = list(info["messages"])
    while True:
        said = cheat(env, messages)
        event = env.finish(Ending.LENGTH_LIMIT) if said is None else env.take(said)
        messages += [{"role": "assistant", "content": said}, *event.messages]
        require_unbroken([event.fault] if event.ending is Ending.BROKEN else [])
        if event.ending is not None:
            return event.parts["success"], event.reward or 0.0


def play(
    env_id: str, player: Demonstrator, seed: int, rng: np.random.Generator, task: int | None = None
) -> tuple[float, Attempt]:
    """One episode: its success, and what happened."""
    with Opened(env_id) as env:
        return episode(env, player, seed, rng, task)


def episode(
    env: ToolEnv, player: Demonstrator, seed: int, rng: np.random.Generator, task: int | None
) -> tuple[float, Attempt]:
    """One episode of an environment that is open."""
    _, info = env.reset(seed=seed, options=None if task is None else {"task": task})
    messages = list(info["messages"])
    for _ in range(env.max_turns):
        action = formats.translate(player(messages, rng), env.format, env.schemas)
        _, _, terminated, truncated, info = env.step(action)
        messages += [{"role": "assistant", "content": action}, *info["messages"]]
        require_unbroken([info["fault"]])
        if terminated or truncated:
            return float(info["parts"]["success"]), info["attempt"]
    raise EnvironmentDefect(f"an episode did not end within max_turns = {env.max_turns}")


def success(env_id: str, player: Demonstrator) -> float:
    """Share of success over episodes with different tasks, of those that the player knows how to play."""
    with Opened(env_id) as env:
        won = list(successes(env, player))
    return float(np.mean(won)) if won else float("nan")


def successes(env: ToolEnv, player: Demonstrator) -> Iterator[float]:
    """The success of each of these episodes."""
    rng = np.random.default_rng(0)
    for seed in range(EPISODES):
        with suppress(UnknownTask):
            yield episode(env, player, seed, rng, None)[0]


def scripted(env_id: str, seed: int, task: int, after: bool = False) -> dict[str, Any]:
    """What a fixed script meets in a new environment, or `after` other episodes of it.

    The script is the demonstrator's play, then a call of each tool, a turn of bad calls, and an answer.
    """
    with Opened(env_id) as env:
        if after:
            _scripted(env_id, env, seed + 1, task + 1)
        return _scripted(env_id, env, seed, task)


def _scripted(env_id: str, env: ToolEnv, seed: int, task: int) -> dict[str, Any]:
    task = min(task, len(env.tasks) - 1)
    kept = deepcopy(env._task_at(task))
    rate, attempt = episode(env, player_of(env_id), seed, np.random.default_rng(seed), task)
    require_untouched(kept, env.problem)
    opening, _ = env.reset(seed=seed, options={"task": task})
    script = {
        schema["function"]["name"]: env.call(schema["function"]["name"], **arguments(schema)) for schema in env.schemas
    }
    script |= {"the turn of bad calls": env.call("nobody") + "<tool_call>{</tool_call>", "the answer": kept.prompt}
    told, names = {}, ("observation", "reward", "terminated", "truncated")
    for name, said in script.items():
        if not env.is_open or (env.turns and env.turns >= env.max_turns - 1):
            env.reset(seed=seed, options={"task": task})
        *found, info = env.step(said)
        told[name] = dict(zip(names, found, strict=True)) | {"messages": info["messages"]}
        require_untouched(kept, env.problem)
        require_text(info["messages"])
    require_text(attempt.messages)
    return {"attempt": attempt, "success": rate, "opening": opening, **told}


def require_untouched(kept: Task, task: Task) -> None:
    """A task is what it was before it was played: later episodes and records hold it too."""
    found = difference(kept.data, task.data, "Task.data") or difference(kept.answer, task.answer, "Task.answer")
    require(not found, f"a task is changed as it is played, for later episodes and records too; copy it first: {found}")


def require_text(messages: Sequence[Message]) -> None:
    """No tool's result is an object without a text of its own."""
    for message in messages:
        said = _ADDRESS.search(str(message["content"])) if message["role"] == "tool" else None
        require(
            said is None,
            f"the tool {message.get('name')!r} shows the agent {said and said[0]!r:.100}, which differs in every run; "
            "return a text, a number, a list or a dict, and write a tool that has to be awaited as an async def",
        )
