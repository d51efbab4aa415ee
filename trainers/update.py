"""One batch becomes optimizer steps: pack, score, loss, step.

A mini-batch is some of the groups, whole; a micro-batch is what fits into memory, and changes no gradient. The
log-probs of each batch's first mini-batch are compared with the engine's, for nothing. Left out: the weights of a
correction (`correction`), and what must hold of all this (`audit`).
"""

import math
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.episode import Episode
from palaestra.record import Lesson
from palaestra.trainers.audit.live import NO_GAP, audit_gradients, audit_weights, audited_gap
from palaestra.trainers.batch import Batch, Seen
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.forward import Scores, token_logprobs
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.advantages import Advantages
from palaestra.trainers.losses.aggregation import token_weights
from palaestra.trainers.losses.correction import corrected
from palaestra.trainers.losses.token_advantages import GAE
from palaestra.trainers.packed import Packed, pack, placed
from palaestra.trainers.passes import passes

_FREE = math.log(0.9)
"""Old log-prob below which a token could have been another one: elsewhere an upper clip has nothing to hold back."""


def update(
    learner: Learner[GRPOConfig], batch: Batch, advantages: Advantages, seen: Seen
) -> tuple[dict[str, float], list[Lesson]]:
    """Learn from a batch: one step of the learner. Returns its figures, and one Lesson a sample."""
    config, rate = learner.config, learner.rate
    device = next(learner.model.parameters()).device
    correction = corrected(config.recipe.correction, batch, seen)
    values = [np.asarray(value, np.float64) for value in advantages]
    said: list[tuple[tuple[NDArray[np.float32], ...], int]] = [((), 0)] * len(batch.samples)
    sums, norms, taught_parts, gap = defaultdict[str, float](float), list[float | None](), 0, dict(NO_GAP)
    # Without a further term an advantage of 0 has no gradient: its sample counts in the weights and is not computed.
    every = seen.reference is not None or bool(config.recipe.entropy_coef) or learner.critic is not None
    longest = config.recipe.shaping.max_completion_length
    parts = batch.mini_batches(config.optimizer.num_mini_batches)
    for number, part in enumerate(parts * config.optimizer.num_iterations):
        weights = token_weights([correction.kept[i] for i in part], config.recipe.aggregation, longest)
        audit_weights(weights, [correction.kept[i] for i in part], config.recipe.aggregation)
        taught = [
            (i, share)
            for i, share in zip(part, weights, strict=True)
            if correction.kept[i] and (values[i].any() or every)
        ]
        if not taught:
            continue
        places = [i for i, _ in taught]
        packed = pack(
            [batch.episodes[i] for i in places],
            [values[i] for i in places],
            [share * correction.factors[i] for i, share in taught],
            None if seen.reference is None else [seen.reference[i] for i in places],
            None if seen.old is None else [seen.old[i] for i in places],
        ).to(device)
        said_N = _passes(learner, packed, seen, sums, _lesson_of_critic(learner, batch, seen, places, packed))
        if learner.critic is not None:
            learner.critic.step(rate)
        if not taught_parts:
            gap = audited_gap(learner, said_N, packed)
        norms.append(learner.descend(rate))
        if number < len(parts):  # What it said before it learned from these tokens, not in later passes.
            for i, of_sample in zip(places, packed.by_episode(said_N), strict=True):
                said[i] = _by_row(of_sample, batch.episodes[i]), taught_parts
        taught_parts += 1
    audit_gradients(norms, values, batch, sums)
    learner.step += 1
    sums = defaultdict(float, learner.ranks.summed(sums))
    lessons = [
        Lesson(learner.step, scored.terms or {}, float(value.mean()), *of_sample, scored.remarks)
        for scored, value, of_sample in zip(batch.scored, values, said, strict=True)
    ]
    taken = [norm for norm in norms if norm is not None]
    counted = max(sums["tokens"], 1)
    return {
        "loss": sums["loss"] / max(taught_parts, 1),
        "grad_norm": sum(taken) / max(len(taken), 1),
        "kl": sums["kl"] / counted,
        "num_tokens/shared_ratio": sums["read"] / max(sums["computed"], 1),
        **({"critic/loss": sums["critic"] / max(taught_parts, 1)} if learner.critic is not None else {}),
        "clip_ratio/low_mean": sums["low"] / counted,
        "clip_ratio/high_mean": sums["high"] / counted,
        "clip_ratio/region_mean": (sums["low"] + sums["high"]) / counted,
        "clip_ratio/free_high_mean": sums["free_high"] / max(sums["free"], 1),
        "optimizer_steps": len(taken),
        "skipped_steps": len(norms) - len(taken),
        **gap,
        **correction.figures,
        "learning_rate": config.optimizer.learning_rate * rate,
        **({"entropy": sums["entropy"] / counted} if taught_parts else {}),
    }, lessons


def _lesson_of_critic(
    learner: Learner[GRPOConfig], batch: Batch, seen: Seen, places: list[int], packed: Packed
) -> tuple[torch.Tensor, ...]:
    """What it is to expect before each token, and what it has expected; nothing where there is no critic."""
    advantage = learner.config.recipe.advantage
    if not isinstance(advantage, GAE) or seen.values is None:
        return ()
    expected, episodes = advantage.expected(batch, seen), [batch.episodes[i] for i in places]
    both = ([expected[i] for i in places], [seen.values[i] for i in places])
    return tuple(placed(values, episodes).to(packed.ids_N.device) for values in both)


def _passes(
    learner: Learner[GRPOConfig],
    packed: Packed,
    seen: Seen,
    sums: defaultdict[str, float],
    of_critic: tuple[torch.Tensor, ...] = (),
) -> torch.Tensor:
    """Gather the gradient of a mini-batch; returns the log-prob of each of its tokens."""
    config, said_N = learner.config, torch.zeros_like(packed.sampled_logprobs_N)
    for micro, counts in passes(learner.model, packed, config.optimizer.micro_batch_tokens, learner.ranks):
        own = sums if counts else defaultdict[str, float](float)
        with learner.computing():
            scores = token_logprobs(learner.model, micro, config.play.temperature)
            if counts:
                said_N[micro.origin_N] = scores.logprobs_N.detach()
            own["entropy"] += float(scores.entropies_N.detach().sum())
            own["read"] += len(micro.ids_N)
            own["computed"] += scores.computed
            _backward(learner, scores, micro, seen, own)
        if of_critic and learner.critic is not None:
            places_S = micro.origin_N[micro.sampled_N]
            expected_S, before_S = (part_N[places_S] for part_N in of_critic)
            weights_S = micro.weights_N[micro.sampled_N]
            own["critic"] += learner.critic.learn(scores.hidden_SD, expected_S, before_S, weights_S)
    return learner.ranks.add(said_N)


def _backward(
    learner: Learner[GRPOConfig], scores: Scores, micro: Packed, seen: Seen, sums: defaultdict[str, float]
) -> None:
    """Add one micro-batch's gradient, and its figures to `sums`."""
    recipe, sampled_N, logprobs_N = learner.config.recipe, micro.sampled_N, scores.logprobs_N
    result = recipe.loss(
        logprobs_N[sampled_N],
        micro.old_N[sampled_N],
        micro.advantages_N[sampled_N],
        micro.row_N[sampled_N],
    )
    loss = (result.loss_S * micro.weights_N[sampled_N]).sum()
    if seen.reference is not None:
        kl_N = recipe.kl(logprobs_N, micro.reference_N) * sampled_N
        loss = loss + recipe.kl.beta * (kl_N * micro.weights_N).sum()
        sums["kl"] += float(kl_N.detach().sum())
    if recipe.entropy_coef:
        loss = loss - recipe.entropy_coef * (scores.entropies_N * micro.weights_N).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    sums["loss"] += float(loss.detach())
    sums["low"] += result.clipped_low
    sums["high"] += result.clipped_high
    free_S = (micro.old_N[sampled_N] < _FREE) & (micro.advantages_N[sampled_N] > 0)
    sums["free"] += int(free_S.sum())
    sums["free_high"] += 0 if result.high_S is None else int((result.high_S & free_S).sum())
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
