"""An environment that answers each turn after a delay, whatever the turn says; its id is `bench/Answers-v0`."""

import time
from typing import Any

import gymnasium

from palaestra.envs import TextSpace

ENV_ID = "on_gpu.answers:bench/Answers-v0"
WORDS = ("river", "stone", "cloud", "bread", "night", "glass", "horse", "field")
"""Words of the questions and answers. A tokenizer that was made of them has two tokens for each: the word, and the
space before it.
"""


def words(tokens: int, seed: int) -> str:
    """Return a text of about this many tokens."""
    return " ".join(WORDS[(seed + 7 * place) % len(WORDS)] for place in range(max(1, tokens // 2)))


class Answers(gymnasium.Env):
    """Environment whose episodes have a fixed number of turns."""

    observation_space = action_space = TextSpace()

    def __init__(self, turns: int, prompt_tokens: int, wait_seconds: float) -> None:
        self._turns, self._prompt_tokens, self._seconds = turns, prompt_tokens, wait_seconds
        self._left = turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode with a prompt that depends on the seed."""
        super().reset(seed=seed)
        self._left = self._turns
        return words(self._prompt_tokens, seed or 0), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer a turn after the delay; the last turn is answered at once."""
        self._left -= 1
        if self._left:
            time.sleep(self._seconds)
        return words(16, len(action)), float(len(action) % 2), not self._left, False, {}


gymnasium.register("bench/Answers-v0", "on_gpu.answers:Answers")
