"""An environment that answers each turn after a while, whatever was said; its id is `bench/Answers-v0`."""

import time
from typing import Any

import gymnasium

from palaestra.envs import TextSpace

ENV_ID = "on_gpu.answers:bench/Answers-v0"
WORDS = ("river", "stone", "cloud", "bread", "night", "glass", "horse", "field")
"""Of questions and answers. A tokenizer that was made of them has two tokens for each: it, and the space before it."""


def said(tokens: int, seed: int) -> str:
    """About so many tokens."""
    return " ".join(WORDS[(seed + 7 * place) % len(WORDS)] for place in range(max(1, tokens // 2)))


class Answers(gymnasium.Env):
    """Hears so many turns."""

    observation_space = action_space = TextSpace()

    def __init__(self, turns: int, prompt_tokens: int, wait_seconds: float) -> None:
        self._turns, self._prompt_tokens, self._seconds = turns, prompt_tokens, wait_seconds
        self._left = turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """A prompt of its seed's."""
        super().reset(seed=seed)
        self._left = self._turns
        return said(self._prompt_tokens, seed or 0), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The last turn is not waited for: nothing comes after it."""
        self._left -= 1
        if self._left:
            time.sleep(self._seconds)
        return said(16, len(action)), float(len(action) % 2), not self._left, False, {}


gymnasium.register("bench/Answers-v0", "on_gpu.answers:Answers")
