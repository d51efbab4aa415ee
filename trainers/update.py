"""One batch of played episodes becomes optimizer steps: pack, score, loss, step, publish.

A mini-batch is some of the groups, whole; a micro-batch is what fits into memory, and changes no gradient. Here engine
and trainer must agree: the first log-probs of each batch are compared with the engine's, for nothing, and a batch in
which they differ stops the run. Left out: any correction for an engine that samples from other weights or arithmetic.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.episode import Episode
from palaestra.errors import TrainingHalted
from palaestra.record import Lesson
from palaestra.trainers.batch import Batch, pack
from palaestra.trainers.forward import micro_batches, token_logprobs
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.aggregation import token_weights
from palaestra.trainers.losses.kl import ESTIMATORS
from palaestra.trainers.losses.policy import policy_loss


def update(
    learner: Learner, episodes: Sequence[Episode], terms: Sequence[Mapping[str, float]], advantages: NDArray[np.float64]
) -> tuple[dict[str, float], list[Lesson]]:
    """Learn from scored episodes, and let the engine sample from what came of it.

    Returns the figures of the step, and one Lesson an episode.
    """
    config, model, reference = learner.config, learner.model, learner.reference
    weight = next(model.parameters())
    device, exact = weight.device, weight.dtype == torch.float32
    for group in learner.optimizer.param_groups:
        group["lr"] = learner.learning_rate
    lessons = [Lesson(learner.step + 1, term, float(value)) for term, value in zip(terms, advantages, strict=True)]
    groups = sorted({episode.start.group for episode in episodes})
    sums = dict.fromkeys(("loss", "kl", "low", "high", "tokens", "steps", "norm", "gap"), 0.0)
    for part in np.array_split(groups, min(config.num_mini_batches, len(groups))):
        inside = [i for i, episode in enumerate(episodes) if episode.start.group in part]
        lengths = [episodes[i].sampled_tokens for i in inside]
        weights = dict(zip(inside, token_weights(lengths, config.algorithm.aggregation), strict=True))
        # Without a KL term an episode of advantage 0 has no gradient: it counts in the weights and is not computed.
        taught = [i for i in inside if advantages[i] != 0 or reference is not None]
        taught = [i for i in taught if episodes[i].sampled_tokens]
        if not taught:
            continue
        batch = pack(
            [episodes[i] for i in taught], [float(advantages[i]) for i in taught], [weights[i] for i in taught]
        ).to(device)
        said_N = torch.zeros_like(batch.sampled_logprobs_N)
        for micro in micro_batches(batch, config.micro_batch_tokens):
            logprobs_N = token_logprobs(model, micro, config.temperature)
            said_N[micro.origin_N] = logprobs_N.detach()
            if not sums["steps"]:
                sums["gap"] = max(sums["gap"], _checked_gap(logprobs_N, micro, learner.step, exact))
            _backward(learner, logprobs_N, micro, sums)
        sums["norm"] += float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)
        for i, said in _by_episode(said_N, batch, taught, episodes):
            lessons[i] = Lesson(lessons[i].step, terms[i], float(advantages[i]), said, int(sums["steps"]))
        sums["steps"] += 1
    rate = learner.learning_rate
    learner.step += 1
    learner.publish()
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
        "learning_rate": rate,
    }, lessons


def _backward(learner: Learner, logprobs_N: torch.Tensor, micro: Batch, sums: dict[str, float]) -> None:
    """Add one micro-batch's gradient, and its figures to `sums`."""
    recipe, reference = learner.config.algorithm, learner.reference
    result = policy_loss(
        logprobs_N,
        micro,
        epsilon=recipe.epsilon,
        epsilon_high=recipe.epsilon_high,
        dual_clip=recipe.dual_clip,
        importance_sampling_level=recipe.importance_sampling_level,
    )
    loss = result.loss
    if reference is not None:
        with torch.no_grad():
            reference_N = token_logprobs(reference, micro, learner.config.temperature)
        kl_N = ESTIMATORS[recipe.kl_estimator](logprobs_N, reference_N) * micro.sampled_N
        loss = loss + recipe.beta * (kl_N * micro.weights_N).sum()
        sums["kl"] += float(kl_N.detach().sum())
    loss.backward()  # type: ignore[no-untyped-call]
    sums["loss"] += float(loss.detach())
    sums["low"] += result.clipped_low
    sums["high"] += result.clipped_high
    sums["tokens"] += result.tokens


def _by_episode(
    said_N: torch.Tensor, batch: Batch, taught: Sequence[int], episodes: Sequence[Episode]
) -> list[tuple[int, tuple[NDArray[np.float32], ...]]]:
    """The trainer's log-probs as one array a token row; rows in which nothing was sampled were not packed."""
    parts = iter(torch.split(said_N.cpu(), batch.lengths.tolist()))
    return [
        (
            i,
            tuple(
                next(parts).numpy() if row.sampled.any() else np.zeros(len(row), np.float32) for row in episodes[i].rows
            ),
        )
        for i in taught
    ]


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
