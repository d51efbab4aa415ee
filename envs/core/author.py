"""ToolEnv, the base class of environments: its author declares limits and toolkits, and writes tasks, a reward and
tools.

No episode runs on the author's object itself: each gets a shallow copy of it (`self` in tools, `reward` and `rounds`).
So all episodes share what a constructor sets, and what an episode sets is lost at its end. Left out: playing an episode
(`machine`), Gymnasium's interface (`envs.arena.text_env`), and the checks of declared values (`declared`).
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.utils import seeding

from palaestra import formats
from palaestra.envs.core.declared import check_class, check_split_of
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.core.tasks import ProceduralTasks
from palaestra.envs.core.tool import Tool, collect
from palaestra.envs.core.toolkit import Toolkit
from palaestra.episode import Attempt, Task
from palaestra.errors import EnvironmentDefect

RewardResult = float | Mapping[str, float]
"""The reward of one seat: a number (`success`), or the value of each declared part by name."""
Rewards = Mapping[str, RewardResult]
"""The rewards of all seats, by seat."""
Rounds = Generator[Mapping[str, str], "Replies", Rewards | None]
"""The generator of a game's rounds; see `ToolEnv.rounds`."""


class Replies(dict[str, str | None]):
    """Replies of the seats that a round asked, by seat; None for a seat that used up its turns without a reply."""

    world: Mapping[str, Any]
    """Final states that toolkits declare after this round (`Toolkit.final`)."""


class ToolEnv:
    """An environment whose agent calls tools. Define `task` (or `task_set`), `reward` and methods marked `@tool`."""

    max_turns: int = 8
    """Turns of the agent; without an answer in the last one the episode ends at TURN_LIMIT. In a game: of a seat, in a
    row."""
    max_turn_calls: int = 16
    """Maximum number of calls that are run in one turn. A message to the agent says how many calls were not run."""
    max_result_chars: int = 4096
    """Maximum characters of a tool's result that the agent is shown: a longer one is cut to its head and tail."""
    max_kept_chars: int = 65_536
    """Maximum characters of a result longer than that which are kept for the reward and in the record, as
    `Call.result`. An answer that a call gives is cut to this length too."""
    system: str | Mapping[str, str] = ""
    """System message of the agent; in a game, by seat."""
    format: str = formats.DEFAULT
    """Name of the format in which calls are read, unless an option names another. If the class does not set it, a
    caller that knows the agent may choose one."""
    parts: Mapping[str, RewardPart] = {"success": RewardPart()}
    """Parts of the reward, by name: a weight and a range for each."""
    toolkits: Sequence[Callable[[], Toolkit]] = ()
    """Makers of the toolkits of an episode: their classes, or functions without arguments."""
    deadlines: Mapping[str, float] = {}
    """Timeouts in seconds: `start` of a toolkit (60), an `async def user` or `reward` (60), `final` and `close` of a
    toolkit (10), `run` of a harness to its next request (120). A timeout ends the episode BROKEN, except that of
    `close`."""
    chance: float | Mapping[str, float] = 0.0
    """Success rate of guessing, for `check`; a property if it depends on the options. In a game, by seat."""
    ceiling: float | Mapping[str, float] | None = None
    """Maximum reward of an attempt without success, for `check`; None if `parts` determine it."""
    seats: tuple[str, ...] = ()
    """Names of the seats of a game; PettingZoo's convention is solver_0."""
    seat_tools: Mapping[str, Sequence[str]] = {}
    """Names of the tools that each seat of a game may call; a seat that is not named has none."""

    problem: Task
    """The task of this episode, for tools."""
    split: str = "train"
    """Split whose tasks are played."""
    _tools: ClassVar[dict[str, Tool]] = {}
    _seed: int | None = None
    _rng: np.random.Generator | None = None
    _tasks_file: str | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._tools = collect(cls)
        declared = getattr(vars(cls).get("reward"), "parts", None)
        if declared is not None and "parts" not in vars(cls):  # A reward that knows its own parts: StagedReward.
            cls.parts = declared
        check_class(cls, ToolEnv)

    def __init__(self, split: str = "train", tasks: str | None = None, format: str | None = None) -> None:
        """`tasks` is the path of a file of tasks to play instead of the environment's own; None plays its own.

        `split` is "train" or "eval"; if `tasks` is given, also "all", the whole file. `format` replaces the class's
        format of calls; None keeps that one. An `__init__` of a subclass calls this one with those of these arguments
        that it accepts.
        """
        check_split_of(split, tasks)
        self.split, self._tasks_file = split, tasks
        if format is not None:
            self.format = formats.validate(format)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.split}>"

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a problem; take all randomness from `rng`."""
        raise EnvironmentDefect(
            f"{type(self).__name__} has no problems: write task(self, rng) or task_set(split), or name a file of them, "
            "tasks=FILE (on a command --env-options tasks=FILE)"
        )

    def task_set(self, split: str) -> Sequence[Task]:
        """Return the problems of a split; override it for fixed data."""
        return ProceduralTasks(self.task, type(self).__qualname__, split)

    def read_tasks(self, path: str, split: str) -> Sequence[Task] | None:
        """Return the problems in a file if the environment knows its columns; None for any other file."""
        return None

    def user(self, attempt: Attempt) -> str | Awaitable[str | None] | None:
        """Return the user's reply to a turn without a call, or None to end the episode; by default None.

        `attempt` is the episode so far, with that turn, without its thinking, as `attempt.answer`; if None is returned,
        it stays the answer. Write `async def user` if it must ask a server. An object that is called like this method
        may stand in its place: `user = ScriptedUser(...)`. In a game it is called for each seat (`attempt.seat`).
        """
        return None

    def reward(self, attempt: Attempt) -> RewardResult | Awaitable[RewardResult]:
        """Return the reward of an attempt: a float is `success`, a dict holds the values of declared parts by name.

        `attempt.answer` is None if the agent gave no answer. Write `async def reward` if it must ask a judge. In a game
        it is called for each seat (`attempt.seat`); in a game without a `reward`, `rounds` returns every seat's reward.
        """
        raise EnvironmentDefect(f"{type(self).__name__} has no reward: define reward(self, attempt)")

    def final(self) -> Mapping[str, Any]:
        """Return what the reward may see of the episode's final state, as plain data: it becomes `attempt.final`.

        Toolkits have a `final` too; the results of all are merged into one mapping. It may be an `async def`.
        """
        return {}

    def rounds(self, task: Task, rng: np.random.Generator) -> Rounds:
        """Run a game: yield {seat: text} to ask one or several seats; the `yield` returns their `Replies`.

        At the end return every seat's reward, unless the game has a `reward`. `rng` is seeded by the episode's seed and
        task.
        """
        raise EnvironmentDefect(f"{type(self).__name__} has no course: write the generator rounds(self, task, rng)")

    def forfeit(self, culprit: str) -> Rewards:
        """Return each seat's reward after `culprit` could not continue. A seat that is not named gets 0 in every part
        of the reward."""
        return {}

    def explain(self, attempt: Attempt) -> str | Awaitable[str]:
        """Return a text that explains the reward to a person; by default that of the `reward` object's own `explain`,
        or "".

        Only `palaestra play` calls it. It may run a grader again, may be an `async def` like `reward`, and may name
        what no agent must see: no observation, info or record holds the text.
        """
        explained: Callable[[Attempt], str | Awaitable[str]] | None = getattr(self.reward, "explain", None)
        return explained(attempt) if explained is not None else ""

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the episode, seeded by its seed; the task does not depend on it."""
        if self._rng is None:  # Made at the first use: most environments never use it.
            self._rng = seeding.np_random(self._seed)[0]
        return self._rng


class Game(ToolEnv):
    """A game of several seats. Define `seats`, `task`, `rounds`, and tools as methods marked `@tool`.

        def rounds(self, task, rng):
            said = yield {"solver_0": task.prompt}                    ask one seat, or several at once
            ...                                                       said["solver_0"] is its reply, None without one
            return {"solver_0": 1.0, "critic_0": {"success": 0.0}}    every seat's reward

    After a turn with calls, the tools run and the seat takes another turn; a turn without a call is its reply. Any text
    is a legal turn.
    """

    max_turns = 4
