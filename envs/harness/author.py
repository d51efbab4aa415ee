"""Harness, the base class of environments in which somebody's own agent loop plays, and Model, the address it asks.

    class Mine(Harness):
        def task(self, rng): ...
        async def run(self, task, model):         asks model.base_url; what it returns is the answer
        def reward(self, attempt): ...

Left out: its connections (`clients`), what a request means (`world`), the API (`wire`, `server`), endings (`machine`).
"""

from collections.abc import Awaitable
from typing import Any, NamedTuple

from palaestra.envs.core.author import ToolEnv
from palaestra.envs.harness import clients
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect


class Model(NamedTuple):
    """Address of the model for one episode, as an OpenAI-compatible server. It ends with the episode."""

    base_url: str
    api_key: str

    @property
    def env(self) -> dict[str, str]:
        """Environment variables in which OpenAI's clients look for the address and the key."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": self.api_key}

    def client(self) -> Any:
        """Return an `AsyncOpenAI` for this episode, with one pool of connections for all episodes; outside an event
        loop, as in a plain `def run`, an `OpenAI`, which shares one pool too."""
        return clients.client(self.base_url, self.api_key)


class Harness(ToolEnv):
    """An environment that is played by an agent loop of your own. Define `task`, `reward`, and `run` or `command`."""

    max_turns = 32
    """Requests of an episode; with one more it ends at TURN_LIMIT."""
    command: tuple[str, ...] = ()
    """A program to run instead of `run`. It reads the task as JSON from standard input, finds the address in
    OPENAI_BASE_URL and the key in OPENAI_API_KEY, and writes the answer as its last line."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls._tools or cls.toolkits or cls.seats:
            what = "@tool methods" if cls._tools else "toolkits" if cls.toolkits else "seats"
            raise EnvironmentDefect(
                f"{cls.__name__} has {what}; a harness offers tools in its own requests and runs them itself: leave "
                "them out, or write a ToolEnv"
            )

    def run(self, task: Task, model: Model) -> Awaitable[str | None] | str | None:
        """Play the task by asking `model`, and return the answer; None if there is none.

        Write `async def run`; all of them share one event loop. A plain `def run` gets a thread, which cannot be
        stopped. What is set on `self` lasts until the end of the episode: `final` can declare it for the reward.
        """
        raise EnvironmentDefect(f"{type(self).__name__} has no harness: write `async def run(self, task, model)`")
