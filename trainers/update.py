"""One batch becomes optimizer steps: pack, score, loss, step.

A mini-batch is some of the groups, whole; a micro-batch is what fits into memory, and changes no gradient. Here engine
and trainer must agree: the first log-probs of each batch are compared with the engine's, for nothing, and a batch in
which they differ stops the run. Left out: any correction for an engine that samples from other weights or arithmetic.
"""

from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.episode import Episode
from palaestra.errors import TrainingHalted
from palaestra.record import Lesson
from palaestra.trainers.batch import Batch, Seen
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.forward import micro_batches, token_logprobs
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.advantages import Advantages
from palaestra.trainers.losses.aggregation import token_weights
from palaestra.trainers.packed import Packed, pack


def update(
    learner: Learner[GRPOConfig], batch: Batch, advantages: Advantages, seen: Seen
) -> tuple[dict[str, float], list[Lesson]]:
    """Learn from a batch: one step of the learner. Returns its figures, and one Lesson a sample."""
    config, model = learner.config, learner.model
    weight = next(model.parameters())
    exact, rate = weight.dtype == torch.float32, learner.rate
    values = [np.asarray(value, np.float64) for value in advantages]
    said: list[tuple[tuple[NDArray[np.float32], ...], int]] = [((), 0)] * len(batch.samples)
    sums, norms, passes = defaultdict[str, float](float), list[float | None](), 0
    for part in batch.mini_batches(config.optimizer.num_mini_batches):
        weights = token_weights([batch.lengths[i] for i in part], config.recipe.aggregation)
        # Without a KL term an advantage of 0 has no gradient: its sample counts in the weights and is not computed.
        taught = [
            (i, share)
            for i, share in zip(part, weights, strict=True)
            if batch.lengths[i] and (values[i].any() or seen.reference is not None)
        ]
        if not taught:
            continue
        places = [i for i, _ in taught]
        packed = pack(
            [batch.episodes[i] for i in places],
            [values[i] for i in places],
            [share for _, share in taught],
            None if seen.reference is None else [seen.reference[i] for i in places],
        ).to(weight.device)
        said_N = torch.zeros_like(packed.sampled_logprobs_N)
        for micro in micro_batches(model, packed, config.optimizer.micro_batch_tokens):
            with learner.computing():
                scores = token_logprobs(model, micro, config.play.temperature)
                logprobs_N = scores.logprobs_N
                sums["entropy"] += float(scores.entropies_N.detach().sum())
                sums["read"] += len(micro.ids_N)
                sums["computed"] += scores.computed
                said_N[micro.origin_N] = logprobs_N.detach()
                if not passes:
                    sums["gap"] = max(sums["gap"], _checked_gap(logprobs_N, micro, learner.step, exact))
                _backward(learner, logprobs_N, micro, seen, sums)
        norms.append(learner.descend(rate))
        for i, of_sample in zip(places, packed.by_episode(said_N), strict=True):
            said[i] = _by_row(of_sample, batch.episodes[i]), passes
        passes += 1
    learner.step += 1
    lessons = [
        Lesson(learner.step, scored.terms or {}, float(value.mean()), *of_sample)
        for scored, value, of_sample in zip(batch.scored, values, said, strict=True)
    ]
    taken = [norm for norm in norms if norm is not None]
    counted = max(sums["tokens"], 1)
    return {
        "loss": sums["loss"] / max(passes, 1),
        "grad_norm": sum(taken) / max(len(taken), 1),
        "kl": sums["kl"] / counted,
        "num_tokens/shared_ratio": sums["read"] / max(sums["computed"], 1),
        "clip_ratio/low_mean": sums["low"] / counted,
        "clip_ratio/high_mean": sums["high"] / counted,
        "clip_ratio/region_mean": (sums["low"] + sums["high"]) / counted,
        "optimizer_steps": len(taken),
        "skipped_steps": len(norms) - len(taken),
        "sampling/sampling_logp_difference/max": sums["gap"],
        "learning_rate": config.optimizer.learning_rate * rate,
        **({"entropy": sums["entropy"] / counted} if passes else {}),
    }, lessons


def _backward(
    learner: Learner[GRPOConfig], logprobs_N: torch.Tensor, micro: Packed, seen: Seen, sums: defaultdict[str, float]
) -> None:
    """Add one micro-batch's gradient, and its figures to `sums`."""
    recipe, sampled_N = learner.config.recipe, micro.sampled_N
    result = recipe.loss(
        logprobs_N[sampled_N],
        micro.sampled_logprobs_N[sampled_N],
        micro.advantages_N[sampled_N],
        micro.row_N[sampled_N],
    )
    loss = (result.loss_S * micro.weights_N[sampled_N]).sum()
    if seen.reference is not None:
        kl_N = recipe.kl(logprobs_N, micro.reference_N) * sampled_N
        loss = loss + recipe.kl.beta * (kl_N * micro.weights_N).sum()
        sums["kl"] += float(kl_N.detach().sum())
    loss.backward()  # type: ignore[no-untyped-call]
    sums["loss"] += float(loss.detach())
    sums["low"] += result.clipped_low
    sums["high"] += result.clipped_high
    sums["tokens"] += len(result.loss_S)


def _by_row(said: NDArray[np.float32], episode: Episode) -> tuple[NDArray[np.float32], ...]:
    """The log-probs of an episode's sampled tokens as one array a token row, 0 where nothing was sampled."""
    parts = []
    for row in episode.rows:
        part = np.zeros(len(row), np.float32)
        count = int(row.sampled.sum())
        part[row.sampled], said = said[:count], said[count:]
        parts.append(part)
    return tuple(parts)


def _checked_gap(logprobs_N: torch.Tensor, micro: Packed, version: int, exact: bool) -> float:
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
