"""Models with random weights in the shapes of Qwen3, how much work they are given, and what that costs in theory."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from palaestra.agents.local_model import cast_weights


@dataclass(frozen=True)
class Work:
    """What a shape is given to do."""

    group: int = 16
    """Rows with the same prompt: episodes of a group in whole steps, and all rows of learning alone."""
    long_tokens: int = 8192
    """Of a row, in learning alone."""
    shared_tokens: int = 2048
    """Of these, the prompt."""
    prompts: int = 16
    """Groups of a whole step."""
    prompt_tokens: int = 512
    turns: int = 3
    median_tokens: int = 256
    """Of a turn; lengths have a long tail."""
    turn_tokens: int = 1024
    """Of the longest turn."""
    wait_seconds: float = 0.05
    """That a tool takes between two turns."""
    steps: int = 2
    """Whole steps; the first warms up and does not count."""
    matrix: int = 8192
    """Side of the square matrices whose product is timed."""


@dataclass(frozen=True)
class Shape:
    """A Qwen3, as far as its size goes. Heads are 128 wide and embeddings are tied, unless said otherwise."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int = 128
    words: int = 151_936
    work: Work = Work()

    def config(self) -> Qwen3Config:
        """As transformers has it."""
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
        """The model in bfloat16."""
        torch.manual_seed(0)
        with device:
            model: Any = AutoModelForCausalLM.from_config(self.config(), dtype=torch.bfloat16)
        return cast_weights(model, "bfloat16").eval()

    @property
    def parameters(self) -> int:
        """All weights; the embedding is the output layer, and counts once."""
        heads = self.heads * self.head_dim
        attention = self.hidden * (2 * heads + 2 * self.key_heads * self.head_dim) + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.words * self.hidden + self.hidden

    def learning_flops(self, rows: int, tokens: int, shared: int) -> float:
        """Of the forward and backward pass over rows that begin with the same tokens, which are computed once."""
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
