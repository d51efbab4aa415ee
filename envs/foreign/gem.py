"""Environments of gem-llm: `foreign/Gem-v0` with `game=` one of the ids that GEM registers."""

from typing import Any

from palaestra.envs.foreign.text_game import TextGame, installed
from palaestra.errors import UsageError, unknown_name


class Gem(TextGame):
    """One of GEM's environments of one agent. The reward 1 of an episode's last step is a success, as in GEM."""

    def __init__(self, game: str = "game:GuessTheNumber-v0-easy", **options: Any) -> None:
        """`game` is an id of GEM; `options` are those of the game, such as max_turns."""
        with installed("gem-llm", "foreign/Gem-v0"):
            import gem
            from gem.envs.registration import ENV_REGISTRY
        if game not in ENV_REGISTRY:
            raise UsageError(unknown_name("game", game, ENV_REGISTRY))
        with installed("gem-llm", f"GEM's {game}"), self.own_generators():
            self._game = gem.make(game, **options)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the game that the seed decides."""
        super().reset(seed=seed)
        with self.own_generators():
            return self._game.reset(seed=seed)[0], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn."""
        with self.own_generators():
            observation, reward, terminated, truncated, _ = self._game.step(action)
        info = {"success": float(reward >= 1)} if terminated or truncated else {}
        return observation, float(reward), bool(terminated), bool(truncated and not terminated), info
