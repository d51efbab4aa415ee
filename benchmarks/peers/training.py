"""Code that both sides of `make bench-train` share: the models, the prompts, the tool, the reward, and the clocks.

It uses the standard library, torch and transformers only, since it runs in TRL's own environment too.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

WORDS = 1024
"""Number of words that prompts are drawn from; every model has them."""
RESULT = 16
"""Tokens of a tool's result."""


@dataclass(frozen=True)
class Case:
    """Settings of one kind of step."""

    prompts: int
    rollouts: int
    prompt_tokens: int
    turn_tokens: int
    """Tokens that are sampled in each turn; no turn ends early."""
    latency: float = 0.0
    """Seconds that a tool waits between two turns; without it there is one turn."""
    calls: int = 1
    """Number of calls of such a tool, one after each turn but the last."""
    model: str = "small"
    """Name of a model in MODELS."""

    @property
    def turns(self) -> int:
        """Return the number of turns."""
        return 1 + self.calls if self.latency else 1


def small() -> Any:
    """Return a Qwen3 of 3.4 million parameters."""
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
    return Qwen3ForCausalLM(config)


def smollm2() -> Any:
    """Return a model in the shape of SmolLM2-135M: 134.5 million parameters, 49,152 words."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


MODELS = {"small": small, "smollm2": smollm2}


@cache
def build(name: str = "small") -> Any:
    """Return one of MODELS in float32 with random weights, the same model for every call."""
    torch.manual_seed(0)
    return MODELS[name]().float()


def prompts(case: Case, step: int) -> list[list[int]]:
    """Return the prompts of a step: different ones in each step, the same on both sides."""
    random = Random(step)
    return [[random.randrange(8, WORDS) for _ in range(case.prompt_tokens)] for _ in range(case.prompts)]


def wait(latency: float) -> list[int]:
    """Wait as a search or a program does, and return a result of fixed length: the tool."""
    time.sleep(latency)
    return list(range(8, 8 + RESULT))


def reward(ids: Sequence[int]) -> float:
    """Return a reward that differs within a group, so that every row is trained on."""
    return sum(ids) % 101 / 100


def peak_gb() -> float:
    """Return the peak memory of this process so far, in GB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e9


@dataclass
class Clock:
    """CPU and wall seconds between `begin` and `end`."""

    cpu: float = 0.0
    wall: float = 0.0

    def begin(self) -> None:
        """Begin to measure."""
        self.cpu, self.wall = -time.process_time(), -time.perf_counter()

    def end(self) -> dict[str, float]:
        """Return the seconds since `begin`."""
        return {"cpu_s": self.cpu + time.process_time(), "wall_s": self.wall + time.perf_counter()}
