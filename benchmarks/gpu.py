"""How fast the whole loop runs on this machine's GPU, with a random-weight Qwen3 of a given shape: `make bench-gpu`.

The loop is `trainers.grpo.train` itself, in a real environment. Random weights say nothing sensible, so nearly every
episode is one turn of `turn_tokens`; advantages are random, so that every row is trained on. What is measured is speed
alone. The weights have the type that is asked for, engine and trainer alike; a real run keeps them in float32.

On a machine without a GPU it says so and stops; small shapes run with `--device cpu`.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from peers.findings import Report
from transformers import Qwen3Config, Qwen3ForCausalLM

import palaestra
from palaestra.agents.local_model import find_device, serve
from palaestra.agents.policies.tiny import tiny_tokenizer
from palaestra.trainers.batch import Batch, Seen
from palaestra.trainers.config import grpo_config
from palaestra.trainers.grpo import train
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.advantages import Group
from palaestra.trainers.recipes import Recipe

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Shape:
    """Measure generation and training speed with random weights. The default shape is about that of Qwen3-0.6B."""

    hidden: int = 1024
    """Width of the model."""
    layers: int = 28
    """Depth."""
    heads: int = 16
    """Query heads."""
    kv_heads: int = 8
    """Key and value heads."""
    head_dim: int = 128
    """Width of a head."""
    intermediate: int = 3072
    """Width of the feed-forward layer."""
    vocabulary: int = 151_936
    """Rows of the embedding."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the weights."""
    num_prompts: int = 16
    """Groups a step."""
    num_generations: int = 16
    """Episodes a group."""
    turn_tokens: int = 256
    """Sampled tokens an episode."""
    slots: int = 256
    """Episodes decoded at once."""
    micro_batch_tokens: int = 16_384
    """Tokens in one training pass."""
    steps: int = 4
    """Steps that are played; the first warms up and does not count."""
    device: str = "cuda"
    """`cpu` works too, for shapes that are small enough."""
    out: Path = RESULTS / "gpu.json"
    """Where the figures go."""


@dataclass(frozen=True, slots=True)
class Random(Group):
    """Every row is trained on, whatever its reward."""

    def __call__(self, batch: Batch, seen: Seen) -> np.ndarray:
        """One number an episode."""
        return np.random.default_rng(batch.number).standard_normal(len(batch.rewards))


def build(shape: Shape) -> Any:
    """A random Qwen3 of the shape, with a tokenizer that knows a few words."""
    words = ["What is the mayor of the city where Bado was born?", "no result"]
    tokenizer = tiny_tokenizer(words)
    config = Qwen3Config(
        vocab_size=max(shape.vocabulary, len(tokenizer)),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(find_device(shape.device)):
        model: Any = Qwen3ForCausalLM(config).to(getattr(torch, shape.dtype))
    return serve(model, tokenizer, slots=shape.slots)


def measure(shape: Shape) -> dict[str, Any]:
    """Play and train `steps` steps; the figures are medians of all but the first."""
    local = build(shape)
    arena = palaestra.arena("palaestra/TwoHop-v0", shape.slots)
    config = grpo_config(
        "palaestra/TwoHop-v0",
        Recipe("grpo-tcr", advantage=Random()),
        steps=shape.steps,
        num_prompts=shape.num_prompts,
        num_generations=shape.num_generations,
        max_turn_tokens=shape.turn_tokens,
        max_episode_tokens=shape.turn_tokens + 256,
        micro_batch_tokens=shape.micro_batch_tokens,
        slots=shape.slots,
    )
    rates: list[tuple[float, float]] = []
    for progress in train(Learner(local.agent, local.model, config), arena):
        metrics = progress.metrics
        rates.append((metrics["num_tokens"] / metrics["time/play"], metrics["num_tokens"] / metrics["time/learn"]))
        print(
            f"step {progress.step}: generation {rates[-1][0]:,.0f} tokens/s, training {rates[-1][1]:,.0f} tokens/s, "
            f"engine and trainer differ by {metrics['sampling/sampling_logp_difference/max']:.2g}",
            flush=True,
        )
    arena.close()
    device = find_device(shape.device)
    counted = rates[1:] or rates
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "parameters": sum(parameter.numel() for parameter in local.model.parameters()),
        "generation_tokens_per_second": round(statistics.median(rate for rate, _ in counted)),
        "training_tokens_per_second": round(statistics.median(rate for _, rate in counted)),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    shape = tyro.cli(Shape, args=arguments)
    if shape.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no GPU here; a small shape can be measured with --device cpu", file=sys.stderr)
        return 2
    report, figures = Report(shape), measure(shape)
    for name, figure in figures.items():
        print(f"{name:<30}{figure}")
    return report.conclude(figures)


if __name__ == "__main__":
    sys.exit(main())
