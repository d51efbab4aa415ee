"""Options that several commands share: the environment, the number and limits of episodes, and a server's address."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from palaestra.cli.agents import AgentOptions, loads_here, token_limits
from palaestra.cli.output import Reported
from palaestra.errors import UsageError
from palaestra.plain import from_pairs
from palaestra.trainers.config.env_config import EnvId
from palaestra.trainers.run.versions import weights_of

Split = Literal["train", "eval", "all"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """The options of every command that opens one environment."""

    split: Split | None = None
    """Tasks to play; by default what the environment itself takes, which is train for most."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE options for the environment: tasks=problems.jsonl, or any option of its class. For one environment of a
    mixture: calculator.KEY=VALUE."""

    @property
    def environment(self) -> dict[str, Any]:
        """The options of the environment, with its split."""
        split = {} if self.split is None else {"split": self.split}
        return {**split, **from_pairs(self.env_options, "env_options")}


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions(EnvironmentOptions, Reported):
    """The options of every command that lets an agent play the tasks of an environment."""

    env_id: EnvId
    """Id of the environment; for eval also a mixture of several by weight, as in two-hop=3 calculator=1."""
    agent: Annotated[AgentOptions, tyro.conf.arg(name="")]
    tasks: int = 256
    """Tasks, the first of the split."""
    samples: int = 1
    """Episodes per task: the k of avg@k, pass@k and maj@k."""
    temperature: float = 1.0
    """Sampling temperature. 0 means greedy decoding."""
    split: Split = "train"
    """Split of the tasks to play; `all` is the whole file, for a test that is published as one file."""
    slots: int = 32
    """Number of episodes played at once; one for a person."""
    max_turn_tokens: int | None = None
    """Maximum tokens of a turn; a turn that is cut ends its episode. By default the limit of the run that trained the
    model, else 4096."""
    max_episode_tokens: int | None = None
    """Maximum tokens of a row: prompt, tool results and the agent's turns. By default the limit of the run that trained
    the model, else 23,040."""
    seed: int = 0
    """Seed of the sampling noise, of the environment's randomness and of every random choice."""

    def __post_init__(self) -> None:
        counts = min(self.tasks, self.samples, self.slots) >= 1
        if not (counts and 0 <= self.temperature < float("inf") and self.seed >= 0):
            raise UsageError("tasks, samples and slots must be at least 1, and temperature and seed at least 0")

    @property
    def limits(self) -> tuple[int, int]:
        """The maximum tokens of a turn, and of a row."""
        return token_limits(self.agent.model, self.max_turn_tokens, self.max_episode_tokens)

    def settings(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that decide an episode, except the environment's id, the agent and the seed."""
        settings: dict[str, Any] = {"options": environment}
        if self.agent.base_url is not None or loads_here(self.agent):
            names = ("temperature", "max_turn_tokens", "max_episode_tokens")
            settings |= dict(zip(names, (self.temperature, *self.limits), strict=True))
        if self.agent.tool_rate is not None:
            settings["tool_rate"] = self.agent.tool_rate
        if loads_here(self.agent):
            settings["weights"] = weights_id(self.agent.model)
            # A file that is older than these two options lacks them, which is read as None.
            settings |= {"chat_template": self.agent.chat_template, "system": self.agent.system or None}
        return settings


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """The options of every command that serves over HTTP."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 for every network of this machine, which needs a token."""
    port: int = 8000
    """Port; 0 chooses a free one."""
    token_env: str = ""
    """Environment variable that holds a token for clients to send. Without a token only requests from this machine are
    answered."""

    def __post_init__(self) -> None:
        check_port(self.port)


def check_port(port: int) -> None:
    """Raise a UsageError for a number that is not a valid port."""
    if not 0 <= port < 65_536:
        raise UsageError(f"port is {port}; it must be from 0 to 65535")


def weights_id(model: str) -> str:
    """Return an identifier of the weights, because the content of a folder or hub name can change."""
    if Path(model).is_dir():
        return weights_of(Path(model))
    from palaestra.agents.local_model import commit_of

    try:
        return commit_of(model)
    except OSError:  # There is no such model; opening it says so.
        return ""
