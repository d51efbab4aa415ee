"""Environments of palaestra as environments of GEM (gem-llm 0.1), for trainers that speak its interface.

    register("palaestra/TwoHop-v0")                 gem.make("palaestra/TwoHop-v0") and gem.make_vec know it then
    GemEnv("palaestra/TwoHop-v0", split="eval")

An observation is the new messages as text, without roles; an action is the agent's whole turn, with its calls in the
environment's format; the info has the messages and the tools' schemas. GEM has no place for an episode that failed: a
BROKEN one raises `palaestra.Broken`. Left out: tokens, which are the trainer's.
"""

from typing import Any

import gem

from palaestra.episode import Ending
from palaestra.errors import Broken
from palaestra.interop.episodes import open_text_env


class GemEnv(gem.Env):
    """An environment of palaestra. The seed of `reset` chooses the problem."""

    def __init__(self, palaestra_id: str, seed: int | None = None, **options: Any) -> None:
        """`seed` is that of a first `reset` without one; `options` are the environment's, its split among them."""
        super().__init__()
        self._id, self._options, self._seed = palaestra_id, options, seed
        self._env = open_text_env(palaestra_id, **options)

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode. GEM's own `reset` would seed the generators of the whole process."""
        seed, self._seed = self._seed if seed is None else seed, None
        text, info = self._env.reset(seed=seed)
        return text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a turn."""
        text, reward, terminated, truncated, info = self._env.step(action)
        if info["ending"] == Ending.BROKEN:
            raise Broken(info["fault"])
        return text, reward, terminated, truncated, info

    def sample_random_action(self) -> str:
        """Return a short random text."""
        return self._env.action_space.sample()

    def spawn(self, same_state: bool = False, **kwargs: Any) -> "GemEnv":
        """Return a new environment; with `same_state` its episode is a copy of this one's."""
        new = GemEnv(self._id, self._seed, **{**self._options, **kwargs})
        if same_state:
            new._env.restore(self._env.snapshot())
        return new


def register(env_id: str, **options: Any) -> None:
    """Register an environment with GEM, under its id."""
    gem.register(env_id, f"{__name__}:GemEnv", palaestra_id=env_id, **options)
