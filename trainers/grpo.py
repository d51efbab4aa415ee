"""Group relative policy optimization, top to bottom: play, shape, compare, pack, step, publish.

Left out: where the tasks come from beyond an even draw (`sampling`), saving and showing (`run`, the command line),
and any correction for an engine that samples from other weights or arithmetic than the trainer's; here the two must
agree, and a step in which they do not stops the run.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.agents import Agent, Limits, play
from palaestra.episode import Episode
from palaestra.errors import TrainingHalted
from palaestra.protocols import Arena
from palaestra.trainers.batch import Batch, pack
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.forward import micro_batches, token_logprobs
from palaestra.trainers.losses.advantages import group_advantages
from palaestra.trainers.losses.kl import k3
from palaestra.trainers.losses.policy import policy_loss
from palaestra.trainers.metrics import play_metrics
from palaestra.trainers.progress import Progress
from palaestra.trainers.sampling.uniform import uniform_starts
from palaestra.trainers.shaping import shape

Advantages = Callable[[Sequence[float], Sequence[int]], NDArray[np.float64]]


def train(
    agent: Agent, model: Any, arena: Arena, config: GRPOConfig, advantages: Advantages = group_advantages
) -> Iterator[Progress]:
    """Train `model`, which `agent`'s engine samples from, in `arena`; one Progress a step.

    `advantages` turns rewards and groups into advantages; a control experiment passes another.
    """
    recipe = config.algorithm
    limits = Limits(config.max_turn_tokens, config.longest_row)
    reference = copy.deepcopy(model).requires_grad_(False) if recipe.beta > 0 else None
    optimizer = torch.optim.AdamW(
        model.parameters(), config.learning_rate, betas=(0.9, config.adam_beta2), weight_decay=config.weight_decay
    )
    agent.engine.update_weights(model.named_parameters(), version=0)
    for step in range(config.steps):
        began = time.perf_counter()
        starts = uniform_starts(
            step,
            task_count=arena.task_count,
            num_prompts=config.num_prompts,
            num_generations=config.num_generations,
            seed=config.seed,
        )
        played = list(play(agent, arena, starts, limits=limits, temperature=config.temperature))
        episodes = _scored(played, config.max_broken_share)
        terms = [shape(episode, recipe) for episode in episodes]
        groups = [episode.start.group for episode in episodes]
        values = advantages([sum(term.values()) for term in terms], groups)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(config, step)
        metrics = play_metrics(episodes, terms, broken=len(played) - len(episodes))
        playing = time.perf_counter() - began
        metrics |= _learn(model, reference, optimizer, episodes, values, config, version=step)
        agent.engine.update_weights(model.named_parameters(), version=step + 1)
        metrics |= {
            "learning_rate": _learning_rate(config, step),
            "time/play": playing,
            "time/learn": time.perf_counter() - began - playing,
            "step_time": time.perf_counter() - began,
        }
        yield Progress("grpo", step + 1, config.steps, metrics)


def _learn(
    model: Any,
    reference: Any,
    optimizer: torch.optim.Optimizer,
    episodes: Sequence[Episode],
    advantages: NDArray[np.float64],
    config: GRPOConfig,
    version: int,
) -> dict[str, float]:
    """One optimizer step a mini-batch; a mini-batch is some of the groups, whole."""
    weight = next(model.parameters())
    device, exact = weight.device, weight.dtype == torch.float32
    groups = sorted({episode.start.group for episode in episodes})
    sums = dict.fromkeys(("loss", "kl", "low", "high", "tokens", "steps", "norm", "gap"), 0.0)
    for part in np.array_split(groups, min(config.num_mini_batches, len(groups))):
        inside = [i for i, episode in enumerate(episodes) if episode.start.group in part]
        tokens = sum(episodes[i].sampled_tokens for i in inside)
        # Without a KL term an episode of advantage 0 has no gradient: it counts in the denominator and is not computed.
        taught = [i for i in inside if advantages[i] != 0 or reference is not None]
        taught = [i for i in taught if episodes[i].sampled_tokens]
        if not taught:
            continue
        batch = pack([episodes[i] for i in taught], [float(advantages[i]) for i in taught]).to(device)
        for micro in micro_batches(batch, config.micro_batch_tokens):
            logprobs_N = token_logprobs(model, micro, config.temperature)
            if not sums["steps"]:
                sums["gap"] = max(sums["gap"], _checked_gap(logprobs_N, micro, version, exact))
            _backward(model, reference, logprobs_N, micro, tokens, config, sums)
        sums["norm"] += float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        sums["steps"] += 1
    steps, counted = max(sums["steps"], 1), max(sums["tokens"], 1)
    return {
        "loss": sums["loss"] / steps,
        "grad_norm": sums["norm"] / steps,
        "kl": sums["kl"] / counted,
        "clip_ratio/low_mean": sums["low"] / counted,
        "clip_ratio/high_mean": sums["high"] / counted,
        "clip_ratio/region_mean": (sums["low"] + sums["high"]) / counted,
        "optimizer_steps": sums["steps"],
        "sampling/sampling_logp_difference/max": sums["gap"],
    }


def _backward(
    model: Any,
    reference: Any,
    logprobs_N: torch.Tensor,
    micro: Batch,
    tokens: int,
    config: GRPOConfig,
    sums: dict[str, float],
) -> None:
    """Add one micro-batch's gradient, and its figures to `sums`."""
    recipe = config.algorithm
    result = policy_loss(
        logprobs_N,
        micro,
        epsilon=recipe.epsilon,
        epsilon_high=recipe.epsilon_high,
        dual_clip=recipe.dual_clip,
        denominator=tokens,
    )
    loss = result.loss
    if reference is not None:
        with torch.no_grad():
            reference_N = token_logprobs(reference, micro, config.temperature)
        kl = k3(logprobs_N, reference_N)[micro.sampled_N].sum()
        loss = loss + recipe.beta * kl / tokens
        sums["kl"] += float(kl.detach())
    loss.backward()  # type: ignore[no-untyped-call]
    sums["loss"] += float(loss.detach())
    sums["low"] += result.clipped_low
    sums["high"] += result.clipped_high
    sums["tokens"] += result.tokens


def _checked_gap(logprobs_N: torch.Tensor, micro: Batch, version: int, exact: bool) -> float:
    """Largest difference between what the engine said of its tokens and what the trainer says, before any step.

    `exact` where weights are float32; in bfloat16 single tokens may differ widely and the mean is held.
    """
    same = micro.sampled_N & (micro.versions_N == version)
    if not same.any():
        return 0.0
    gaps = (logprobs_N.detach() - micro.sampled_logprobs_N)[same].abs()
    worst, allowed = (float(gaps.max()), 1e-3) if exact else (float(gaps.mean()), 0.1)
    if not worst <= allowed:  # Not-a-number too.
        raise TrainingHalted(
            f"the engine's log-probs differ from the trainer's by {worst:.3g} (at most {allowed} expected): they "
            "do not run the same weights, template or arithmetic, and training on would be training on noise"
        )
    return float(gaps.max())


def _scored(played: Sequence[Episode], max_broken_share: float) -> list[Episode]:
    """The episodes that have a reward; too many without one end the run."""
    broken = [episode for episode in played if episode.reward is None]
    if len(broken) > max_broken_share * len(played) or len(broken) == len(played):
        raise TrainingHalted(
            f"{len(broken)} of {len(played)} episodes of this step are BROKEN, more than max_broken_share="
            f"{max_broken_share}; the last fault: {broken[-1].fault}"
        )
    scored = [episode for episode in played if episode.reward is not None]
    if not any(episode.sampled_tokens for episode in scored):
        raise TrainingHalted(
            "no episode of this step holds a sampled token; are the prompts longer than max_episode_tokens?"
        )
    if not all(np.isfinite(row.logprobs).all() for episode in scored for row in episode.rows):
        raise TrainingHalted("the engine reports log-probs that are not numbers; the weights have diverged")
    return scored


def _learning_rate(config: GRPOConfig, step: int) -> float:
    if config.lr_schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (1 - 0.95 * step / max(1, config.steps - 1))
