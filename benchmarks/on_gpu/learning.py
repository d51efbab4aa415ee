"""Measure one optimizer step over long rows whose groups share a prefix, and the memory that it takes.

Rates count the operations that a model needs, without those that checkpointing repeats.
"""

import time
from typing import Any

import numpy as np
import torch

from on_gpu.memory import Peak
from on_gpu.rates import wait_for
from on_gpu.settings import chosen_settings, settled
from on_gpu.shapes import Shape
from palaestra import Attempt, Ending, Episode, Start, Task, TokenRow
from palaestra.agents import Agent
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.trainers.batch import Batch, BatchScores, Sample, Scored
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.update import update


def learning(shape: Shape, device: torch.device, matrix_flops: float | None, scale: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds, rate and memory peak of a step with these settings of `scale`; the second of two steps
    counts.
    """
    work = shape.work
    fit = settled(
        shape,
        device,
        model="random",
        engine={"kind": "vllm", "gpus": ("0",)},  # None on this device.
        num_prompts=1,
        num_generations=work.group,
        max_turn_tokens=work.long_tokens,
        max_episode_tokens=work.long_tokens,
        **scale,
    )
    model, peak = shape.build(device), Peak(device)
    learner = Learner(Agent(TorchEngine(model, (), slots=1)), model, fit.config)
    batch = _rows(shape)
    advantages = learner.config.recipe.advantage(batch, BatchScores())
    for _ in range(2):
        wait_for(device)
        began = time.perf_counter()
        metrics, _ = update(learner, batch, advantages, BatchScores())
        wait_for(device)
        took = time.perf_counter() - began
    flops = shape.learning_flops(work.group, work.long_tokens, work.shared_tokens) / took
    figures: dict[str, Any] = {
        "seconds": took,
        "tokens_per_second": work.group * work.long_tokens / took,
        "model_flops": flops,
        "optimizer_steps": metrics["optimizer_steps"],
        "settings": chosen_settings(fit.config),
    }
    if matrix_flops:
        figures["share_of_matrix_rate"] = flops / matrix_flops
    needed = fit.estimate
    largest = max((needed.learning, needed.stepping), key=lambda parts: sum(part.size for part in parts))
    return figures | peak.read([*needed.persistent, *largest])


def _rows(shape: Shape) -> Batch:
    """Return one group: rows of one turn after the same prompt, with log-probs of unknown weights."""
    work, rng = shape.work, np.random.default_rng(0)
    sampled = np.arange(work.long_tokens) >= work.shared_tokens
    beginning, played = rng.integers(1, shape.words, work.shared_tokens), []
    for number in range(work.group):
        rest = rng.integers(1, shape.words, work.long_tokens - work.shared_tokens)
        row = TokenRow(
            np.concatenate([beginning, rest]).astype(np.int32),
            sampled,
            np.where(sampled, -np.log(shape.words), 0).astype(np.float32),
            np.where(sampled, 10**6, -1).astype(np.int32),
        )
        attempt = Attempt(Task("", id="0"), (), "", (), 1)
        episode = Episode(Start(0, number), attempt, (row,), Ending.ANSWERED, 0.0, {"success": 0.0})
        played.append(Scored(episode, {"outcome": 0.0}))
    return Batch(0, tuple(played), tuple(Sample(place, 0) for place in range(work.group)))
