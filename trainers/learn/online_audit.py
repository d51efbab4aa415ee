"""The audit during training: it checks each batch before the update, and each of its mini-batches.

It takes less than 1 % of a step's time (`tests/prove/test_mutations.py` measures that), so it cannot be switched off.
A finding halts the run before the weights change; unusual values only become metrics. To check texts and prompts takes
longer, so this is done for a few episodes per step.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.agents.policies.table import trained_engines
from palaestra.causes import BROKEN
from palaestra.episode import Episode
from palaestra.errors import TrainingHalted
from palaestra.trainers.audit.audit_findings import AuditFinding, require
from palaestra.trainers.audit.groups import group_findings, member_findings
from palaestra.trainers.audit.tokens import (
    Flat,
    length_findings,
    mask_findings,
    prompt_findings,
    repetition,
    text_findings,
    turn_findings,
    version_findings,
)
from palaestra.trainers.batch import Batch
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.packing import Packed
from palaestra.trainers.losses.aggregation import Aggregation

_TEXTS, _SAID = 2, 8
"""Number of episodes of a batch whose texts are compared with their tokens, and number checked for repetition."""
_QUANTILES = {"audit/gap_p50": 0.5, "audit/gap_p95": 0.95, "audit/gap_p99": 0.99}
_ROUNDING = 1e-6


def audited(learner: Learner[GRPOConfig], batch: Batch) -> dict[str, float]:
    """Raise `TrainingHalted` if a batch cannot be trained on; otherwise return metrics of unusual values."""
    config, scored_episodes = learner.config, batch.rollouts
    require_rewards(batch, config.play.max_broken_share)
    episodes = [scored_episodes[place].episode for place in sorted({sample.place for sample in batch.samples})]
    flat = Flat.of(episodes)
    if not np.isfinite(flat.logprobs_N).all():
        raise TrainingHalted("the engine reports log-probs that are not numbers; the weights have diverged")
    require(mask_findings(flat))
    require(version_findings(flat, learner.step, config.play.max_staleness))
    require(group_findings(batch))
    require(member_findings(batch))
    _audit_turns(learner, flat, episodes, batch.number)
    sizes = np.unique(batch.groups, return_counts=True)[1]
    return {
        "audit/short_groups": float((sizes < config.play.num_generations).sum()),
        "audit/without_tokens": float(sum(not episode.sampled_tokens for episode in episodes)),
        "audit/repetition": repetition(Flat.of(_some(episodes, batch.number, _SAID))),
    }


def _audit_turns(learner: Learner[GRPOConfig], flat: Flat, episodes: Sequence[Episode], number: int) -> None:
    """Check turns, lengths, texts and prompts with the chat template of each seat. Texts are checked in a few episodes,
    different ones at each step. Raise `TrainingHalted` for a finding.
    """
    agent, play = learner.agent, learner.config.play
    chats = {episode.start.seat: agent.chat_of(episode.start.seat) for episode in episodes}
    for speaker in {id(chat): chat for chat in chats.values() if chat is not None}.values():
        spoken_episodes = [episode for episode in episodes if chats[episode.start.seat] is speaker]
        require(turn_findings(flat if len(spoken_episodes) == len(episodes) else Flat.of(spoken_episodes), speaker))
    for place, episode in enumerate(_some(episodes, number, _TEXTS)):
        if (chat := chats[episode.start.seat]) is not None:
            require(length_findings([episode], learner.config.longest_row, play.max_turn_tokens))
            require(text_findings(episode, chat))
            if not place:  # Rendering is expensive, so only one prompt is checked.
                require(prompt_findings(episode, chat))


def _some(episodes: Sequence[Episode], number: int, count: int) -> list[Episode]:
    """Choose `count` episodes of a batch, different ones in each batch."""
    size = len(episodes)
    return [episodes[(number * count + i) * 7919 % size] for i in range(min(count, size))]


def require_rewards(batch: Batch, max_broken_share: float) -> None:
    """Raise `TrainingHalted` if too many episodes have no reward, or if no episode can be trained on."""
    total = len(batch.rollouts)
    dropped = [scored for scored in batch.rollouts if scored.terms is None]
    if len(dropped) > max_broken_share * total or len(dropped) == total:
        raise TrainingHalted(
            f"{len(dropped)} of {total} episodes of this step are BROKEN, or have no reward or no verdict, more than "
            f"max_broken_share={max_broken_share}: {batch.causes.of_kind(BROKEN)}"
        )
    cut = sum(bool(scored.episode.fault) for scored in batch.rollouts if scored.terms is not None)
    # No samples for another reason: the sampler kept no group, and the step is counted as skipped.
    if not any(batch.lengths) and (batch.samples or cut == total - len(dropped)):
        raise TrainingHalted(
            f"no episode of this step can be learned from: of {total}, {cut} were cut short by another seat, and no "
            "other holds a sampled token; are the prompts longer than max_episode_tokens?"
        )


def audit_weights(shares: Sequence[float], token_counts: Sequence[int], aggregation: Aggregation) -> None:
    """Raise `TrainingHalted` if a weight is not a finite number, or if the weights of the trained tokens of a
    mini-batch do not sum to 1 where the aggregation promises it.
    """
    total = float(np.dot(shares, token_counts))
    if not np.isfinite(total):
        require([AuditFinding("token weights", "a mini-batch", f"the weights of its tokens sum to {total}")])
    if any(token_counts) and aggregation in ("token", "sample") and abs(total - 1) > _ROUNDING:
        details = f"the weights of its {sum(token_counts)} trained tokens sum to {total:.6g}; expected 1"
        require([AuditFinding("token weights", "a mini-batch", details)])


def audit_gradients(
    norms: Sequence[float | None],
    values: Sequence[NDArray[np.float64]],
    batch: Batch,
    sums: Mapping[str, float],
) -> None:
    """Raise `TrainingHalted` if a batch has nonzero advantages, but no token is trained on or every gradient is 0.

    Gradients of exactly 0 are allowed if tokens were clipped, if each token had probability 1 (zero entropy), or if
    the advantages of equal episodes sum to 0.
    """
    lengths = batch.lengths
    if not any(value.any() for value, length in zip(values, lengths, strict=True) if length):
        return
    if not norms:
        details = f"of {sum(lengths)} tokens none is trained on, and the advantages are not 0"
        require([AuditFinding("correction", "this step", details)])
    if not any(norm != 0 for norm in norms) and sums["entropy"] > 0 and not sums["low"] + sums["high"]:
        totals: dict[bytes, NDArray[np.float64]] = {}
        for value, episode in zip(values, batch.episodes, strict=True):
            same = b" ".join(row.ids.tobytes() for row in episode.rows)
            totals[same] = totals.get(same, np.zeros(1)) + value
        if not any(total.any() for total in totals.values()):
            return
        require([AuditFinding("gradients", "this step", "every gradient is exactly 0, and the advantages are not")])


def audited_gap(learner: Learner[GRPOConfig], said_N: torch.Tensor, packed: Packed) -> dict[str, float]:
    """Return metrics of the log-prob gap between engine and trainer before a batch's first optimizer step.

    Only tokens that were sampled with the present weights count; without such tokens return {}. Raise `TrainingHalted`
    if the gap is too large. With shared float32 weights the largest gap must be small. In another precision or on a
    server single tokens may differ much, so only the mean must be small.
    """
    same_N = packed.sampled_N & (packed.versions_N == learner.step)
    gap_S = (said_N - packed.sampled_logprobs_N)[same_N].abs().cpu().numpy()
    if not len(gap_S):  # Without tokens to compare, the gap is unknown, not 0.
        return {}
    mean, worst, bound = float(gap_S.mean()), float(gap_S.max()), learner.config.play.max_logprob_gap
    precise = (
        learner.config.engine.sampling_precision == "same" and next(learner.model.parameters()).dtype == torch.float32
    )
    if bound is not None:
        gap, allowed = mean, bound
    elif precise and all(engine.shares_weights for engine in trained_engines(learner.agent)):
        gap, allowed = worst, 1e-3
    else:
        gap, allowed = mean, 0.1
    if not gap <= allowed:  # True for NaN too.
        raise TrainingHalted(
            f"the engine's log-probs differ from the trainer's by {gap:.3g} (at most {allowed} expected, "
            "max_logprob_gap): they do not run the same weights, template or arithmetic, and training on would be "
            "training on noise"
        )
    return {
        "sampling/sampling_logp_difference/mean": mean,
        "sampling/sampling_logp_difference/max": worst,
        **dict(zip(_QUANTILES, np.quantile(gap_S, list(_QUANTILES.values())).tolist(), strict=True)),
    }
