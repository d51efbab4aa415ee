"""The limits on tokens with which episodes are played. Left out: what follows when one is reached (`play`)."""

from dataclasses import dataclass

from palaestra.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Limits on the number of tokens in a turn and in an episode."""

    max_turn_tokens: int = 512
    """Maximum tokens of a turn; a turn that is cut there ends its episode."""
    max_episode_tokens: int = 4096
    """Maximum tokens of a row: prompt, tool results and responses."""

    def __post_init__(self) -> None:
        if self.max_turn_tokens < 1 or self.max_episode_tokens < 2:
            raise ConfigError(f"{self}: expected max_turn_tokens >= 1 and max_episode_tokens >= 2")
