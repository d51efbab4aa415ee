"""Generation alone, learning alone, and whole steps of GRPO with tools, each with the settings of a real run.

Settings are those that `train` would choose for what is free on the device (`scale.fit`). Weights are random, and what
is measured does not depend on them: turns end by their length and not by a word, and advantages are drawn, so that
every row is learned from. Rates count what a model must compute or read, and nothing beyond that.
"""

import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import palaestra
from on_gpu.answers import ENV_ID, WORDS, said
from on_gpu.memory import Peak
from on_gpu.rates import wait_for
from on_gpu.shapes import Shape
from palaestra import Attempt, Completion, Ending, Episode, Request, Start, Task, TokenRow
from palaestra.agents import Agent
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.local_model import serve
from palaestra.agents.policies.tiny import tiny_tokenizer
from palaestra.trainers.batch import Batch, BatchScores, Sample, Scored
from palaestra.trainers.config.grpo_config import GRPOConfig, grpo_config
from palaestra.trainers.config.recipes import Recipe
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.group_advantages import Successes
from palaestra.trainers.scale.available_memory import room_of
from palaestra.trainers.scale.fit_memory import Fitted, counted, fitted

_SPARE = 128
"""Tokens a row by which the engine's cache may be larger than the row: it grows in steps."""
_RESULT_TOKENS = 32
"""Of a tool's result with what a template puts around it, at most."""


@dataclass(frozen=True, slots=True)
class Drawn(Successes):
    """Every row is learned from, whatever its reward."""

    def __call__(self, batch: Batch, scores: BatchScores) -> np.ndarray:
        """One number an episode."""
        return np.random.default_rng(batch.number).standard_normal(len(batch.rewards))


class WholeTurns(TorchEngine):
    """A turn that has come to its longest has ended, as if the model had said so."""

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """None is cut."""
        return [replace(completion, cut=False) for completion in super().poll(timeout)]


def generation(shape: Shape, device: torch.device, memory_bytes: float | None) -> dict[str, Any]:
    """Tokens a second at full width, with a prompt of its own for each row; the second of two rounds counts."""
    work = shape.work
    longest = work.prompt_tokens + work.new_tokens + _SPARE
    # A cache for all rows: nothing else is to be held here, so there is room.
    asked = {"slots": work.rows, "max_episode_tokens": longest, "cache_tokens": work.rows * longest}
    settings = counted(_asked(device, **asked), shape.config(), room_of(device))
    model, peak = shape.build(device), Peak(device)
    engine = TorchEngine(model, (), slots=work.rows, cache_tokens=work.rows * longest)
    for number in range(2):
        read, decoded = _generate(engine, shape, device, number)
    steps = work.new_tokens - 1
    figures: dict[str, Any] = {
        "prompt_tokens_per_second": work.rows * work.prompt_tokens / read,
        "tokens_per_second": work.rows * steps / decoded,
        "ms_a_step": 1000 * decoded / steps,
    }
    if memory_bytes:
        must = sum(shape.decoding_bytes(work.rows, work.prompt_tokens + step) for step in range(1, work.new_tokens))
        figures["share_of_bandwidth_floor"] = must / memory_bytes / decoded
    alone = [part for part in settings.estimate.persistent if part.name in ("weights", "GPU context")]
    return figures | peak.read([*alone, *settings.estimate.playing])


def _generate(engine: TorchEngine, shape: Shape, device: torch.device, number: int) -> tuple[float, float]:
    """Seconds until every row has its first token, and from there until all have the last."""
    work, rng = shape.work, np.random.default_rng(number)
    for row in range(work.rows):
        own = number * work.rows + row
        ids = rng.integers(1, shape.words, work.prompt_tokens).tolist()
        engine.submit(Request(own, Start(row, own), 0, (), (), ids, work.new_tokens))
    wait_for(device)
    before, began, ended = engine.sampled, time.perf_counter(), 0
    while engine.sampled - before < work.rows:
        ended += len(engine.poll())
    wait_for(device)
    read = time.perf_counter()
    if engine.sampled - before != work.rows:
        raise RuntimeError(f"{work.rows} rows do not run at once: the cache is too small for them")
    while ended < work.rows:
        ended += len(engine.poll())
    wait_for(device)
    return read - began, time.perf_counter() - read


def learning(shape: Shape, device: torch.device, matrix_flops: float | None) -> dict[str, Any]:
    """Model FLOPs a second of one optimizer step over long rows; the second of two steps counts."""
    work = shape.work
    settings = _settings(
        shape,
        device,
        slots=work.rows,
        num_prompts=work.long_rows // 2,
        num_generations=2,
        max_episode_tokens=work.long_tokens,
    )
    model, peak = shape.build(device), Peak(device)
    learner = Learner(Agent(TorchEngine(model, (), slots=1)), model, settings.config)
    batch = _long_rows(shape)
    advantages = learner.config.recipe.advantage(batch, BatchScores())
    for _ in range(2):
        wait_for(device)
        began = time.perf_counter()
        metrics, _ = update(learner, batch, advantages, BatchScores())
        wait_for(device)
        took = time.perf_counter() - began
    flops = shape.learning_flops(work.long_rows, work.long_tokens) / took
    figures: dict[str, Any] = {
        "tokens_per_second": work.long_rows * work.long_tokens / took,
        "model_flops": flops,
        "optimizer_steps": metrics["optimizer_steps"],
        "settings": _told(settings.config),
    }
    if matrix_flops:
        figures["share_of_matrix_rate"] = flops / matrix_flops
    needed = settings.estimate
    return figures | peak.read([*needed.persistent, *_larger(needed.learning, needed.stepping)])


def _long_rows(shape: Shape) -> Batch:
    """Rows of one turn, each with a prompt of its own, sampled by weights that are no longer known."""
    work, rng = shape.work, np.random.default_rng(0)
    played = []
    for number in range(work.long_rows):
        sampled = np.arange(work.long_tokens) >= work.long_tokens // 8
        row = TokenRow(
            rng.integers(1, shape.words, work.long_tokens).astype(np.int32),
            sampled,
            np.where(sampled, -np.log(shape.words), 0).astype(np.float32),
            np.where(sampled, 10**6, -1).astype(np.int32),
        )
        attempt = Attempt(Task("", id=str(number // 2)), (), "", (), 1)
        episode = Episode(Start(number // 2, number), attempt, (row,), Ending.ANSWERED, 0.0, {"success": 0.0})
        played.append(Scored(episode, {"outcome": 0.0}))
    return Batch(0, tuple(played), tuple(Sample(place, place // 2) for place in range(work.long_rows)))


def whole_step(shape: Shape, device: torch.device) -> dict[str, Any]:
    """Play with tools, learn, publish: `train` itself. The first step warms up."""
    work = shape.work
    longest = work.prompt_tokens + work.turns * (work.turn_tokens + _RESULT_TOKENS) + _RESULT_TOKENS
    settings = _settings(
        shape,
        device,
        slots=work.prompts * work.rollouts,
        num_prompts=work.prompts,
        num_generations=work.rollouts,
        max_turn_tokens=work.turn_tokens,
        max_episode_tokens=longest,
        steps=work.steps,
    )
    play = settings.config.play
    peak, model = Peak(device), shape.build(device)
    tokenizer = tiny_tokenizer([said(1000, 0), *WORDS])
    local = serve(model, tokenizer, slots=play.slots, engine=partial(WholeTurns, cache_tokens=play.cache_tokens))
    arena = palaestra.arena(
        ENV_ID,
        play.slots,
        turns=work.turns,
        success_at=1,  # Its rewards are drawn: any from 1 on is a success.
        prompt_tokens=work.prompt_tokens,
        wait_seconds=work.wait_seconds,
    )
    try:
        with patch(
            "palaestra.trainers.learn.online_audit.turn_findings", return_value=()
        ):  # No turn here ends with a stop.
            steps = train_learner(Learner(local.agent, model, settings.config), arena)
            found = [step.metrics for step in steps][1:]
    finally:
        arena.close()
    names = {"step_seconds": "step_time", "play_seconds": "time/play", "learn_seconds": "time/learn"}
    figures: dict[str, Any] = {
        name: statistics.median(metrics[key] for metrics in found) for name, key in names.items()
    }
    sampled = statistics.median(metrics["num_tokens/sampled"] for metrics in found)
    figures |= {
        "turns": found[-1]["episodes/turns"],
        "sampled_tokens": sampled,
        "sampled_tokens_per_second": sampled / figures["step_seconds"],
        "engine_and_trainer_differ_by": found[-1]["sampling/sampling_logp_difference/mean"],
        "settings": _told(settings.config),
    }
    needed = settings.estimate
    return figures | peak.read([*needed.persistent, *_larger(needed.playing, needed.learning, needed.stepping)])


def _settings(shape: Shape, device: torch.device, **changes: Any) -> Fitted:
    """What a run with this model would be on this device."""
    return fitted(_asked(device, **changes), shape.config(), room_of(device))


def _asked(device: torch.device, **changes: Any) -> GRPOConfig:
    plain = {"num_prompts": 2, "num_generations": 2, "num_mini_batches": 1, "precision": "bfloat16"}
    recipe = Recipe("grpo-tcr", advantage=Drawn())
    return grpo_config(ENV_ID, recipe, device=device.type, **{**plain, **changes})


def _told(config: GRPOConfig) -> dict[str, Any]:
    """What was chosen to make it fit."""
    scale = config.scale
    return {
        "micro_batch_tokens": config.optimizer.micro_batch_tokens,
        "cache_tokens": config.play.cache_tokens,
        "gradient_checkpointing": bool(scale.gradient_checkpointing),
        "optimizer_bits": scale.optimizer_bits or 32,
        "optimizer_offload": bool(scale.optimizer_offload),
    }


def _larger(*phases: tuple[Any, ...]) -> tuple[Any, ...]:
    return max(phases, key=lambda parts: sum(part.size for part in parts))
