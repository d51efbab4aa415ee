"""What the author of an environment writes: limits, tools' owners, problems, a reward.

Left out: the machine that plays it (`machine`), and tools, which are methods with `@tool`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from palaestra import formats
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.core.space import TEXT
from palaestra.envs.core.tasks import ProceduralTasks
from palaestra.envs.core.toolkit import Toolkit, check_toolkits
from palaestra.episode import Attempt, Task
from palaestra.errors import EnvironmentDefect

Judged = float | Mapping[str, float]
"""What a reward comes to."""


class Authored(gymnasium.Env[str, str]):
    """The part of an environment that authors override; they subclass ToolEnv."""

    observation_space = TEXT
    action_space = TEXT

    max_turns: int = 8
    """Turns of the agent; without an answer in the last one the episode ends at TURN_LIMIT."""
    max_turn_calls: int = 16
    """Calls that are run in one turn; the agent is told how many were not."""
    max_result_chars: int = 4096
    """A tool's reply is cut to this, head and tail."""
    system: str = ""
    """What the agent is told before anything else."""
    format: str = formats.DEFAULT
    """In which dialect calls are read. A class that names one has chosen; otherwise whoever opens it may."""
    parts: Mapping[str, RewardPart] = {"success": RewardPart()}
    """What the reward consists of: a weight and a range for each part."""
    reward_timeout: float = 60.0
    """Seconds that an `async def reward` may take; passing them ends the episode BROKEN."""
    start_timeout: float = 60.0
    """Seconds that toolkits with a tool that waits may take to start; passing them ends the episode BROKEN."""
    close_timeout: float = 10.0
    """Seconds that they may take to close; then they are left to themselves, and the slot gets new ones."""
    chance: float = 0.0
    """Success that guessing has, for `check`; a property where the options decide."""
    ceiling: float | None = None
    """The most reward that an attempt without success may get, for `check`; None where `parts` say enough."""
    shared: Sequence[str] = ()
    """Attributes that belong to no episode (a client, an index): a snapshot leaves them as they are."""
    toolkits: Sequence[Callable[[], Toolkit]] = ()
    """What makes the toolkits of an episode: their classes, or functions without arguments."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_toolkits(cls.__name__, cls.toolkits)

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a problem. All its randomness comes from `rng`."""
        raise EnvironmentDefect(f"{type(self).__name__} has no problems: write task(self, rng) or task_set(split)")

    def task_set(self, split: str) -> Sequence[Task]:
        """The problems of a split; override it for fixed data."""
        return ProceduralTasks(self.task, type(self).__qualname__, split)

    def reward(self, attempt: Attempt) -> Judged | Awaitable[Judged]:
        """A float is `success`; a dict names declared parts. `attempt.answer` is None when none was given.

        Write it as an `async def` where a judge has to be asked.
        """
        raise EnvironmentDefect(f"{type(self).__name__} has no reward: define reward(self, attempt)")

    def explain(self, attempt: Attempt) -> str | Awaitable[str]:
        """What a person who asks for a reward is told beside its parts; by default what a declared object has to say.

        `palaestra play` alone calls it: it may run a grader again, may be an `async def` like `reward`, and may name
        what no agent must see, since no observation, info or record holds it.
        """
        told: Callable[[Attempt], str | Awaitable[str]] | None = getattr(self.reward, "explain", None)
        return told(attempt) if told is not None else ""
