"""Models with random weights in the shapes of Qwen3, the amount of work of each, and its theoretical cost."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from palaestra.agents.local_model import cast_weights


@dataclass(frozen=True)
class Work:
    """Amount of work of a shape."""

    group: int = 16
    """Number of rows with the same prompt: the episodes of a group in whole steps, and all rows in learning alone."""
    long_tokens: int = 8192
    """Tokens of a row in learning alone."""
    shared_tokens: int = 2048
    """Tokens of the prompt among these."""
    prompts: int = 16
    """Number of groups of a whole step."""
    prompt_tokens: int = 512
    turns: int = 3
    median_tokens: int = 256
    """Median tokens of a turn; lengths have a long tail."""
    turn_tokens: int = 1024
    """Tokens of the longest turn."""
    wait_seconds: float = 0.05
    """Seconds of a tool call between two turns."""
    steps: int = 2
    """Number of whole steps; the first is the warm-up and does not count."""
    matrix: int = 8192
    """Size of the square matrices whose product is timed."""


@dataclass(frozen=True)
class Shape:
    """Size of a Qwen3 model. By default heads have width 128 and embeddings are tied."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int = 128
    words: int = 151_936
    work: Work = Work()

    def config(self) -> Qwen3Config:
        """Return the config as transformers has it."""
        return Qwen3Config(
            vocab_size=self.words,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_heads,
            head_dim=self.head_dim,
            max_position_embeddings=40_960,
            tie_word_embeddings=True,
            eos_token_id=0,
            pad_token_id=0,
            bos_token_id=None,
        )

    def build(self, device: torch.device) -> Any:
        """Return the model in bfloat16."""
        torch.manual_seed(0)
        with device:
            model: Any = AutoModelForCausalLM.from_config(self.config(), dtype=torch.bfloat16)
        return cast_weights(model, "bfloat16").eval()

    @property
    def parameters(self) -> int:
        """Return the number of weights; the embedding is also the output layer, and counts once."""
        heads = self.heads * self.head_dim
        attention = self.hidden * (2 * heads + 2 * self.key_heads * self.head_dim) + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.words * self.hidden + self.hidden

    def learning_flops(self, rows: int, tokens: int, shared: int) -> float:
        """Return the FLOPs of the forward and backward pass over rows with a common prefix, which is computed once."""
        own = tokens - shared
        pairs = shared**2 / 2 + rows * (own**2 / 2 + own * shared)  # Causal: half of all pairs within a part.
        return 6.0 * self.parameters * (shared + rows * own) + 12 * self.layers * pairs * self.heads * self.head_dim


_TINY = Work(
    group=2,
    long_tokens=96,
    shared_tokens=32,
    prompts=2,
    prompt_tokens=12,
    median_tokens=4,
    turn_tokens=8,
    wait_seconds=0.005,
    matrix=128,
)
SHAPES = {
    "0.6B": Shape(1024, 3072, 28, 16, 8),
    "1.7B": Shape(2048, 6144, 28, 16, 8),
    "4B": Shape(2560, 9728, 36, 32, 8),
    "tiny": Shape(64, 128, 2, 4, 2, head_dim=32, words=1024, work=_TINY),
}
