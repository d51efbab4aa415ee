"""Games of TextArena for one player: `foreign/TextArena-v0` with `game=` one of the ids that TextArena registers.

The agent reads the messages that are new, once each. TextArena's own wrappers of observations, which repeat the whole
game in each of them, are left out; those of actions stay. Left out: games of several players.
"""

from typing import Any

from palaestra.envs.foreign.text_game import TextGame, installed
from palaestra.errors import UsageError, unknown_name


class TextArena(TextGame):
    """One of TextArena's games for one player. The reward 1 is a success, a smaller one is how far the player came."""

    def __init__(self, game: str = "GuessTheNumber-v0", **options: Any) -> None:
        """`game` is an id of TextArena; `options` are those of the game, such as max_turns."""
        with installed("textarena", "foreign/TextArena-v0"):
            import textarena
            from textarena.envs.registration import ENV_REGISTRY
        if game not in ENV_REGISTRY:
            raise UsageError(unknown_name("game", game, ENV_REGISTRY))
        with installed("textarena", f"TextArena's {game}"), self.own_generators():
            self._game = self._inner = textarena.make(game, **options)
            while isinstance(self._inner, textarena.Wrapper):
                self._inner = self._inner.env
            try:
                self._game.reset(num_players=1, seed=0)
            except AssertionError as error:
                raise UsageError(f"{game} is no game for one player, which are all that is adapted: {error}") from error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the game that the seed decides."""
        super().reset(seed=seed)
        with self.own_generators():
            self._game.reset(num_players=1, seed=seed)
            return self._new_text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn; TextArena gives its reward at the end."""
        with self.own_generators():
            done, _ = self._game.step(action=action)
            observation = self._new_text()
            reward = float(self._game.close()[0][0]) if done else 0.0
        return observation, reward, bool(done), False, {"success": float(reward >= 1)} if done else {}

    def _new_text(self) -> str:
        """Return the messages of the game that are new to the player, without the player's own."""
        player, messages = self._inner.get_observation()
        return "\n".join(str(text) for sender, text, *_ in messages if sender != player)
