"""ToolEnv: what the author of an environment writes: limits, toolkits, problems, a reward, and tools as methods.

An instance is never played itself: each episode gets a shallow copy of it (`self` in tools, `reward` and `rounds`), so
what a constructor sets is shared by all episodes, and what an episode sets dies with it. Left out: the machine that
plays it (`machine`), Gymnasium's face (`envs.arena.text_env`), and the checks of what is declared (`declared`).
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
    """Replies of the seats asked in a round, by seat; None for a seat that gave none in its turns."""

    world: Mapping[str, Any]
    """Final states that toolkits declare after this round (`Toolkit.final`)."""


class ToolEnv:
    """An environment whose agent calls tools. Define `task` (or `task_set`), `reward` and methods marked `@tool`."""

    max_turns: int = 8
    """Turns of the agent; without an answer in the last one the episode ends at TURN_LIMIT. In a game: of a seat, in a
    row."""
    max_turn_calls: int = 16
    """Most calls that are run in one turn; the agent is told how many were not."""
    max_result_chars: int = 4096
    """A tool's reply is cut to this, head and tail."""
    max_kept_chars: int = 65_536
    """Of a reply that is longer, so many characters are kept for the reward and in the record, as `Call.result`. An
    answer that a call gives is cut to this too."""
    system: str | Mapping[str, str] = ""
    """System message of the agent; in a game, by seat."""
    format: str = formats.DEFAULT
    """Name of the format in which calls are read. A class that names one has chosen; otherwise whoever opens it may."""
    parts: Mapping[str, RewardPart] = {"success": RewardPart()}
    """Parts of the reward, by name: a weight and a range for each."""
    toolkits: Sequence[Callable[[], Toolkit]] = ()
    """Makers of the toolkits of an episode: their classes, or functions without arguments."""
    deadlines: Mapping[str, float] = {}
    """Seconds for what may wait: `start` of a toolkit (60), an `async def reward` (60), `final` and `close` of a
    toolkit (10). Passing them ends the episode BROKEN, except for `close`."""
    chance: float | Mapping[str, float] = 0.0
    """Success that guessing has, for `check`; a property where the options decide. In a game, by seat."""
    ceiling: float | Mapping[str, float] | None = None
    """The most reward that an attempt without success may get, for `check`; None where `parts` say enough."""
    seats: tuple[str, ...] = ()
    """Names of the seats of a game; PettingZoo likes names such as solver_0."""
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
        if declared is not None and "parts" not in vars(cls):  # A reward that knows its own parts: Progressive.
            cls.parts = declared
        check_class(cls, ToolEnv)

    def __init__(self, split: str = "train", tasks: str | None = None, format: str | None = None) -> None:
        """`tasks` names a file of tasks to play instead of the environment's own.

        `split` is train or eval, or `all` of a file: a test that was published whole. `format` is the dialect in which
        calls are read, in place of the class's. An `__init__` of a subclass hands on what it takes of these.
        """
        check_split_of(split, tasks)
        self.split, self._tasks_file = split, tasks
        if format is not None:
            self.format = formats.validate(format)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.split}>"

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a problem. All its randomness comes from `rng`."""
        raise EnvironmentDefect(f"{type(self).__name__} has no problems: write task(self, rng) or task_set(split)")

    def task_set(self, split: str) -> Sequence[Task]:
        """Return the problems of a split; override it for fixed data."""
        return ProceduralTasks(self.task, type(self).__qualname__, split)

    def read_tasks(self, path: str, split: str) -> Sequence[Task] | None:
        """Return the problems in a file with columns that the environment knows; None for any other file."""
        return None

    def reward(self, attempt: Attempt) -> RewardResult | Awaitable[RewardResult]:
        """A float is `success`; a dict names declared parts. `attempt.answer` is None when none was given.

        Write it as an `async def` where a judge has to be asked. In a game it is asked for each seat
        (`attempt.seat`); a game without one lets `rounds` return every seat's reward.
        """
        raise EnvironmentDefect(f"{type(self).__name__} has no reward: define reward(self, attempt)")

    def final(self) -> Mapping[str, Any]:
        """What of this episode's final state the reward may see, as plain data: it becomes `attempt.final`.

        Toolkits have a `final` too; all of them together are one mapping. It may be an `async def`.
        """
        return {}

    def rounds(self, task: Task, rng: np.random.Generator) -> Rounds:
        """The course of a game: yield {seat: text} to ask one seat or several, and be sent their `Replies`.

        It returns every seat's reward, unless the game has a `reward`. `rng` is its own randomness, from the seed.
        """
        raise EnvironmentDefect(f"{type(self).__name__} has no course: write the generator rounds(self, task, rng)")

    def forfeit(self, culprit: str) -> Rewards:
        """What each seat of a game gets where `culprit` could not go on; one that is not named gets 0 in every part."""
        return {}

    def explain(self, attempt: Attempt) -> str | Awaitable[str]:
        """Return what a person reads beside the parts of a reward; by default the explanation of a declared object.

        `palaestra play` alone calls it: it may run a grader again, may be an `async def` like `reward`, and may name
        what no agent must see, since no observation, info or record holds it.
        """
        explained: Callable[[Attempt], str | Awaitable[str]] | None = getattr(self.reward, "explain", None)
        return explained(attempt) if explained is not None else ""

    @property
    def rng(self) -> np.random.Generator:
        """The episode's own randomness, from its seed; the task does not depend on it."""
        if self._rng is None:  # Made when it is first asked for: most environments never do.
            self._rng = seeding.np_random(self._seed)[0]
        return self._rng


class Game(ToolEnv):
    """A game of several seats. Define `seats`, `task`, `rounds`, and tools as methods marked `@tool`.

        def rounds(self, task, rng):
            said = yield {"solver_0": task.prompt}                    ask one seat, or several at once
            ...                                                       said["solver_0"] is its answer, None without one
            return {"solver_0": 1.0, "critic_0": {"success": 0.0}}    every seat's reward

    A turn with calls runs the seat's tools and the seat goes on; a turn without a call is what it says. Everything a
    seat writes is legal.
    """

    max_turns = 4
