"""A small random model that vLLM's CPU build takes: its heads are 32 wide, which is the least."""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_tokenizer

LONGEST = 512
"""Tokens of a server's rows."""
STOPS = frozenset(range(0, 512, 30))


def make_model(
    folder: Path, *, tied: bool, texts: tuple[str, ...] = ("What is 17 * 23? Answer: 391",), positions: int = 1024
) -> Any:
    """A random model with heads of 32, which is the least that vLLM's CPU build takes."""
    torch.manual_seed(1 + tied)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3.0)
    export(model, tiny_tokenizer(texts), folder)
    return model
