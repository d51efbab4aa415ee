"""Turn one batch into optimizer steps: pack, score, compute the loss, step.

A mini-batch holds whole groups. A micro-batch holds as many tokens as fit into memory; its size does not change the
gradient. The log-probs of each batch's first mini-batch are compared with the engine's, without an extra forward pass.
Not here: the weights of a correction (`losses.importance_correction`), and the checks (`online_audit`).
"""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.episode import Episode
from palaestra.errors import ConfigError
from palaestra.record import Lesson
from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.learn.forward import ForwardScores, token_logprobs
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.online_audit import audit_gradients, audit_weights, audited_gap
from palaestra.trainers.learn.packing import Packed, pack, placed
from palaestra.trainers.learn.rank_passes import passes
from palaestra.trainers.losses.aggregation import token_weights
from palaestra.trainers.losses.group_advantages import Advantages
from palaestra.trainers.losses.importance_correction import corrected
from palaestra.trainers.losses.policy import PolicyLoss
from palaestra.trainers.losses.token_advantages import GAE
from palaestra.trainers.scale.fsdp import sum_gradients

_HIGH_PROBABILITY_LOG = math.log(0.9)
"""Log of 0.9. Tokens with a higher old probability are hardly ever clipped from above, so
`clip_ratio/free_high_mean` leaves them out."""


def update(
    learner: Learner[GRPOConfig], batch: Batch, advantages: Advantages, scores: BatchScores
) -> tuple[dict[str, float], list[Lesson]]:
    """Train on a batch, which is one step of the learner. Return the metrics, and one Lesson for each sample."""
    config, rate = learner.config, learner.rate
    device = next(learner.model.parameters()).device
    correction = corrected(config.recipe.correction, batch, scores)
    values = [np.asarray(value, np.float64) for value in advantages]
    logprobs_by_sample: list[tuple[tuple[NDArray[np.float32], ...], int]] = [((), 0)] * len(batch.samples)
    sums, norms, trained_count, gap = defaultdict[str, float](float), list[float | None](), 0, dict[str, float]()
    # If the loss has no other term, an advantage of 0 gives no gradient: the sample counts in the weights only.
    needs_all_samples = scores.reference is not None or bool(config.recipe.entropy_coef) or learner.critic is not None
    longest = config.recipe.max_completion_length
    mini_batches = batch.mini_batches(config.optimizer.num_mini_batches)
    for number, mini_batch in enumerate(mini_batches * config.optimizer.num_iterations):
        weights = token_weights([correction.token_counts[i] for i in mini_batch], config.recipe.aggregation, longest)
        audit_weights(weights, [correction.token_counts[i] for i in mini_batch], config.recipe.aggregation)
        trained = [
            (i, share)
            for i, share in zip(mini_batch, weights, strict=True)
            if correction.token_counts[i] and (values[i].any() or needs_all_samples)
        ]
        if not trained:
            continue
        places = [i for i, _ in trained]
        packed = pack(
            [batch.episodes[i] for i in places],
            [values[i] for i in places],
            [share * correction.factors[i] for i, share in trained],
            None if scores.reference is None else [scores.reference[i] for i in places],
            None if scores.old is None else [scores.old[i] for i in places],
        ).to(device)
        logprobs_N = _passes(learner, packed, scores, sums, _critic_targets(learner, batch, scores, places, packed))
        if not trained_count:
            gap = audited_gap(learner, logprobs_N, packed)
        norms.append(learner.descend(rate))
        if number < len(mini_batches):  # Record the log-probs of the first iteration only.
            for i, sample_logprobs in zip(places, packed.by_episode(logprobs_N), strict=True):
                logprobs_by_sample[i] = _by_row(sample_logprobs, batch.episodes[i]), trained_count
        trained_count += 1
    audit_gradients(norms, values, batch, sums)
    learner.step += 1
    sums = defaultdict(float, learner.ranks.summed(sums))
    finite_norms = [norm for norm in norms if norm is not None]
    return {
        **({"grad_norm": sum(finite_norms) / len(finite_norms)} if finite_norms else {}),
        **(_figures(learner, sums, trained_count) if trained_count else {}),
        **_kl(learner, batch, scores, sums),
        "optimizer_steps": len(finite_norms),
        "skipped_steps": len(norms) - len(finite_norms),
        **gap,
        **correction.figures,
        "learning_rate": config.optimizer.learning_rate * rate,
    }, [
        # With one advantage per token and no tokens, the array is empty and has no mean.
        Lesson(learner.step, scored.terms or {}, float(value.mean()) if value.size else 0.0, *logprobs, scored.remarks)
        for scored, value, logprobs in zip(batch.scored, values, logprobs_by_sample, strict=True)
    ]


def _figures(learner: Learner[GRPOConfig], sums: Mapping[str, float], mini_batches: int) -> dict[str, float]:
    """Return the metrics that the training passes have summed in `sums`. `mini_batches` is their number."""
    token_count = max(sums["tokens"], 1)
    return {
        "loss": sums["loss"] / mini_batches,
        "entropy/learned": sums["entropy"] / token_count,
        "num_tokens/shared_ratio": sums["read"] / max(sums["computed"], 1),
        **({"critic/loss": sums["critic"] / mini_batches} if learner.critic is not None else {}),
        **(_clip_figures(sums, token_count) if "low" in sums else {}),
    }


def _clip_figures(sums: Mapping[str, float], token_count: float) -> dict[str, float]:
    """Return the shares of tokens that the loss has clipped."""
    return {
        "clip_ratio/low_mean": sums["low"] / token_count,
        "clip_ratio/high_mean": sums["high"] / token_count,
        "clip_ratio/region_mean": (sums["low"] + sums["high"]) / token_count,
        "clip_ratio/free_high_mean": sums["free_high"] / max(sums["free"], 1),
    }


def _kl(learner: Learner[GRPOConfig], batch: Batch, scores: BatchScores, sums: Mapping[str, float]) -> dict[str, float]:
    """Return the metric `kl`, the mean KL per token; an empty dict if the recipe has no KL."""
    if scores.reference is not None and sums["tokens"]:
        return {"kl": sums["kl"] / sums["tokens"]}
    if scores.costs is not None and any(batch.lengths):
        return {
            "kl": float(sum(cost.sum() for cost in scores.costs)) / learner.config.recipe.kl.beta / sum(batch.lengths)
        }
    return {}


def _critic_targets(
    learner: Learner[GRPOConfig], batch: Batch, scores: BatchScores, places: list[int], packed: Packed
) -> tuple[torch.Tensor, ...]:
    """Return the critic's targets and its earlier predictions for each token; an empty tuple if there is no critic."""
    advantage = learner.config.recipe.advantage
    if not isinstance(advantage, GAE) or scores.values is None:
        return ()
    value_targets, episodes = advantage.expected(batch, scores), [batch.episodes[i] for i in places]
    targets_and_values = ([value_targets[i] for i in places], [scores.values[i] for i in places])
    return tuple(placed(values, episodes).to(packed.ids_N.device) for values in targets_and_values)


def _passes(
    learner: Learner[GRPOConfig],
    packed: Packed,
    scores: BatchScores,
    sums: defaultdict[str, float],
    critic_targets: tuple[torch.Tensor, ...] = (),
) -> torch.Tensor:
    """Add up the gradient of a mini-batch. Return the log-prob of each of its tokens under the present weights."""
    config, logprobs_N = learner.config, torch.zeros_like(packed.sampled_logprobs_N)
    micro_batches = list(passes(learner.model, packed, config.optimizer.micro_batch_tokens, learner.ranks))
    for number, (micro, counts) in enumerate(micro_batches):
        sum_gradients(learner.model, now=bool(config.scale.reduce_each_pass) or number == len(micro_batches) - 1)
        pass_sums = sums if counts else defaultdict[str, float](float)
        with learner.computing():
            forward_scores = token_logprobs(learner.model, micro, config.play.temperature)
            if counts:
                logprobs_N[micro.origin_N] = forward_scores.logprobs_N.detach()
            pass_sums["entropy"] += float(forward_scores.entropies_N.detach().sum())
            pass_sums["read"] += len(micro.ids_N)
            pass_sums["computed"] += forward_scores.computed
            _backward(learner, forward_scores, micro, scores, pass_sums)
        if critic_targets and learner.critic is not None:
            places_S = micro.origin_N[micro.sampled_N]
            targets_S, old_values_S = (part_N[places_S] for part_N in critic_targets)
            weights_S = micro.weights_N[micro.sampled_N]
            pass_sums["critic"] += learner.critic.learn(forward_scores.hidden_SD, targets_S, old_values_S, weights_S)
    return learner.ranks.add(logprobs_N)


def _backward(
    learner: Learner[GRPOConfig],
    forward_scores: ForwardScores,
    micro: Packed,
    scores: BatchScores,
    sums: defaultdict[str, float],
) -> None:
    """Add the gradient of one micro-batch to the model's gradients, and its metrics to `sums`."""
    recipe, sampled_N, logprobs_N = learner.config.recipe, micro.sampled_N, forward_scores.logprobs_N
    result = recipe.loss(
        logprobs_N[sampled_N],
        micro.old_N[sampled_N],
        micro.advantages_N[sampled_N],
        micro.row_N[sampled_N],
    )
    loss_S = result.loss_S if isinstance(result, PolicyLoss) else result
    _require_one_per_token(loss_S, int(sampled_N.sum()))
    loss = (loss_S * micro.weights_N[sampled_N]).sum()
    if scores.reference is not None:
        kl_N = recipe.kl(logprobs_N, micro.reference_N) * sampled_N
        loss = loss + recipe.kl.beta * (kl_N * micro.weights_N).sum()
        sums["kl"] += float(kl_N.detach().sum())
    if recipe.entropy_coef:
        loss = loss - recipe.entropy_coef * (forward_scores.entropies_N * micro.weights_N).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    sums["loss"] += float(loss.detach())
    sums["tokens"] += len(loss_S)
    if isinstance(result, PolicyLoss):  # A loss of your own need not report which tokens it clips.
        free_S = (micro.old_N[sampled_N] < _HIGH_PROBABILITY_LOG) & (micro.advantages_N[sampled_N] > 0)
        sums["low"] += result.clipped_low
        sums["high"] += result.clipped_high
        sums["free"] += int(free_S.sum())
        sums["free_high"] += 0 if result.high_S is None else int((result.high_S & free_S).sum())


def _require_one_per_token(loss_S: object, tokens: int) -> None:
    """Raise `ConfigError` unless a loss is one number for each of the sampled tokens."""
    if not isinstance(loss_S, torch.Tensor) or loss_S.shape != (tokens,):
        returned = f"a tensor of shape {tuple(loss_S.shape)}" if isinstance(loss_S, torch.Tensor) else repr(loss_S)[:80]
        raise ConfigError(
            f"the loss returned {returned} for {tokens} sampled tokens; return one value per token, of shape "
            f"({tokens},): they are weighted and added up afterwards (--recipe.aggregation)"
        )


def _by_row(logprobs: NDArray[np.float32], episode: Episode) -> tuple[NDArray[np.float32], ...]:
    """Return the log-probs of an episode as one array per token row, 0 where nothing was sampled."""
    parts = []
    for row in episode.rows:
        part = np.zeros(len(row), np.float32)
        count = int(row.sampled.sum())
        part[row.sampled], logprobs = logprobs[:count], logprobs[count:]
        parts.append(part)
    return tuple(parts)
