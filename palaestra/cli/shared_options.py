"""Options that several commands have: what is played, by whom and how often, and the address of a server."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from palaestra.cli.agents import AgentOptions, token_limits
from palaestra.cli.output import Reported
from palaestra.errors import UsageError
from palaestra.plain import from_pairs
from palaestra.trainers.config.env_config import EnvId

Split = Literal["train", "eval", "all"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """The options of every command that opens one environment."""

    split: Split | None = None
    """Tasks to play; by default what the environment itself takes, which is train for most."""
    env_options: tuple[str, ...] = ()
    """KEY=VALUE for the environment: tasks=problems.jsonl, or what its class takes; for one of a mixture
    calculator.KEY=VALUE."""

    @property
    def environment(self) -> dict[str, Any]:
        """The options of the environment, with its split."""
        split = {} if self.split is None else {"split": self.split}
        return {**split, **from_pairs(self.env_options, "env_options")}


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions(EnvironmentOptions, Reported):
    """The options of every command that lets an agent play the tasks of an environment."""

    env_id: EnvId
    """Environment, by id; for eval also a mixture of several by weight, as in two-hop=3 calculator=1."""
    agent: Annotated[AgentOptions, tyro.conf.arg(name="")]
    tasks: int = 256
    """Tasks, the first of the split."""
    samples: int = 1
    """Episodes a task: the k of avg@k, pass@k and maj@k."""
    temperature: float = 1.0
    """Sampling temperature. 0 means greedy decoding."""
    split: Split = "train"
    """Tasks to play; `all` is the whole of a file, for a test that was published as one."""
    slots: int = 32
    """Episodes played at once; one for a person."""
    max_turn_tokens: int | None = None
    """A turn that is cut here ends its episode; what the model was trained with where it is a run's, else 4096."""
    max_episode_tokens: int | None = None
    """Longest row: prompt, tool results and what the agent says; as in the model's run, else 23,040."""
    seed: int = 0
    """Decides the sampling noise, the environment's own randomness and what is chosen by chance."""

    def __post_init__(self) -> None:
        counts = min(self.tasks, self.samples, self.slots) >= 1
        if not (counts and 0 <= self.temperature < float("inf") and self.seed >= 0):
            raise UsageError("tasks, samples and slots must be at least 1, and temperature and seed at least 0")

    @property
    def limits(self) -> tuple[int, int]:
        """The maximum tokens of a turn, and of a row."""
        return token_limits(self.agent.model, self.max_turn_tokens, self.max_episode_tokens)


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """The options of every command that serves over HTTP."""

    host: str = "127.0.0.1"
    """Where to listen; 0.0.0.0 for every network of this machine, which needs a token."""
    port: int = 8000
    """0 takes a free one."""
    token_env: str = ""
    """Environment variable that holds a token for clients to send. Without one, this machine alone is answered."""

    def __post_init__(self) -> None:
        check_port(self.port)


def check_port(port: int) -> None:
    """Raise a UsageError for a port that does not exist."""
    if not 0 <= port < 65_536:
        raise UsageError(f"port is {port}; it must be from 0 to 65535")
