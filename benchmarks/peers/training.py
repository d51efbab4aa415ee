"""What both sides of `make bench-train` share: the model, the prompts, the tool, the reward, and the clocks.

Standard library and what every trainer of language models has (torch, transformers), since it runs in TRL's own
environment too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

WORDS = 1024
RESULT = 16
"""Tokens of a tool's result."""


@dataclass(frozen=True)
class Case:
    """One kind of step."""

    prompts: int
    rollouts: int
    prompt_tokens: int
    turn_tokens: int
    """Sampled in each turn; nothing ends early."""
    latency: float = 0.0
    """Seconds that a tool waits between two turns; without it there is one turn."""
    calls: int = 1
    """Of such a tool, one after each turn but the last."""

    @property
    def turns(self) -> int:
        """How many there are."""
        return 1 + self.calls if self.latency else 1


def build() -> Any:
    """A random Qwen3 of 3.4 million parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=WORDS,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).float()


def prompts(case: Case, step: int) -> list[list[int]]:
    """Other prompts in every step, the same on both sides."""
    random = Random(step)
    return [[random.randrange(8, WORDS) for _ in range(case.prompt_tokens)] for _ in range(case.prompts)]


def wait(latency: float) -> list[int]:
    """The tool: it waits, as a search or a program does, and answers with so many tokens."""
    time.sleep(latency)
    return list(range(8, 8 + RESULT))


def reward(ids: Sequence[int]) -> float:
    """Differs within a group, so that every row is learned from."""
    return sum(ids) % 101 / 100


@dataclass
class Clock:
    """CPU and wall seconds of what happens between `begin` and `end`."""

    cpu: float = 0.0
    wall: float = 0.0

    def begin(self) -> None:
        """From here on."""
        self.cpu, self.wall = -time.process_time(), -time.perf_counter()

    def end(self) -> dict[str, float]:
        """What passed."""
        return {"cpu_s": self.cpu + time.process_time(), "wall_s": self.wall + time.perf_counter()}
