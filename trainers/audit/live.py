"""The audit of a run that trains: each batch before it is learned from, and each of its mini-batches.

It costs under 1 % of a step (`tests/prove/test_mutations.py` measures that), so it has no switch. What it finds halts
the run before the weights change; what is merely odd is a figure. Texts and prompts, which cost more, are looked at in
a few episodes a step.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.agents.policies.table import trained_engines
from palaestra.episode import Episode
from palaestra.errors import TrainingHalted
from palaestra.trainers.audit.findings import Finding, require
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
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.learner import Learner
from palaestra.trainers.packed import Packed

_TEXTS, _SAID = 2, 8
"""Episodes of a batch whose texts are compared with their tokens, and in which repetition is looked for."""
_QUANTILES = {"audit/gap_p50": 0.5, "audit/gap_p95": 0.95, "audit/gap_p99": 0.99}
_ROUNDING = 1e-6
NO_GAP = {"sampling/sampling_logp_difference/mean": 0.0, "sampling/sampling_logp_difference/max": 0.0}
"""What is said of a batch that nothing is learned from."""


def audited(learner: Learner[GRPOConfig], batch: Batch) -> dict[str, float]:
    """Halt where a batch cannot be learned from; else what is odd about it, in figures."""
    config, played = learner.config, batch.played
    require_rewards(batch, config.play.max_broken_share)
    episodes = [played[place].episode for place in sorted({sample.place for sample in batch.samples})]
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
    """What only the chat of whoever speaks can tell. Of texts, other episodes in each step."""
    agent, play = learner.agent, learner.config.play
    chats = {episode.start.seat: agent.chat_of(episode.start.seat) for episode in episodes}
    for speaker in {id(chat): chat for chat in chats.values() if chat is not None}.values():
        own = [episode for episode in episodes if chats[episode.start.seat] is speaker]
        require(turn_findings(flat if len(own) == len(episodes) else Flat.of(own), speaker))
    for place, episode in enumerate(_some(episodes, number, _TEXTS)):
        if (chat := chats[episode.start.seat]) is not None:
            require(length_findings([episode], learner.config.longest_row, play.max_turn_tokens))
            require(text_findings(episode, chat))
            if not place:  # Rendering is dear.
                require(prompt_findings(episode, chat))


def _some(episodes: Sequence[Episode], number: int, count: int) -> list[Episode]:
    """So many of a batch, others in each."""
    size = len(episodes)
    return [episodes[(number * count + i) * 7919 % size] for i in range(min(count, size))]


def require_rewards(batch: Batch, max_broken_share: float) -> None:
    """Too many episodes without a reward, or none that can be learned from, end the run."""
    played = len(batch.played)
    dropped = [scored for scored in batch.played if scored.terms is None]
    if len(dropped) > max_broken_share * played or len(dropped) == played:
        raise TrainingHalted(
            f"{len(dropped)} of {played} episodes of this step are BROKEN, or have no reward or no verdict, more than "
            f"max_broken_share={max_broken_share}; the last fault: {dropped[-1].fault}"
        )
    cut = sum(bool(scored.episode.fault) for scored in batch.played if scored.terms is not None)
    # Without a sample and not for that reason: its sampler kept no group, and the step is a counted skip.
    if not any(batch.lengths) and (batch.samples or cut == played - len(dropped)):
        raise TrainingHalted(
            f"no episode of this step can be learned from: of {played}, {cut} were cut short by another seat, and no "
            "other holds a sampled token; are the prompts longer than max_episode_tokens?"
        )


def audit_weights(shares: Sequence[float], kept: Sequence[int], aggregation: str) -> None:
    """Halt where the tokens of a mini-batch that are learned from do not weigh 1 together."""
    total = float(np.dot(shares, kept))
    if any(kept) and aggregation in ("token", "sample") and abs(total - 1) > _ROUNDING:
        found = f"the {sum(kept)} tokens that are learned from weigh {total:.6g} together; expected 1"
        require([Finding("token weights", "a mini-batch", found)])


def audit_gradients(
    norms: Sequence[float | None],
    values: Sequence[NDArray[np.float64]],
    batch: Batch,
    sums: Mapping[str, float],
) -> None:
    """Halt where a batch has advantages and no token was learned from, or gave no gradient at all.

    Exact zeros are right where tokens were clipped, could not have come otherwise, or where equal episodes have
    opposite advantages.
    """
    lengths = batch.lengths
    if not any(value.any() for value, length in zip(values, lengths, strict=True) if length):
        return
    if not norms:
        found = f"of {sum(lengths)} tokens none is learned from, and the advantages are not 0"
        require([Finding("correction", "this step", found)])
    if not any(norm != 0 for norm in norms) and sums["entropy"] > 0 and not sums["low"] + sums["high"]:
        totals: dict[bytes, NDArray[np.float64]] = {}
        for value, episode in zip(values, batch.episodes, strict=True):
            same = b" ".join(row.ids.tobytes() for row in episode.rows)
            totals[same] = totals.get(same, np.zeros(1)) + value
        if not any(total.any() for total in totals.values()):
            return
        require([Finding("gradients", "this step", "every gradient is exactly 0, and the advantages are not")])


def audited_gap(learner: Learner[GRPOConfig], said_N: torch.Tensor, packed: Packed) -> dict[str, float]:
    """How far engine and trainer are apart before any step, over tokens of these weights; too far halts the run.

    With the same float32 weights each token is held. Of another precision or on another server single tokens may differ
    widely, and the mean is held.
    """
    same_N = packed.sampled_N & (packed.versions_N == learner.step)
    gap_S = (said_N - packed.sampled_logprobs_N)[same_N].abs().cpu().numpy()
    if not len(gap_S):
        gap_S = np.zeros(1, np.float32)
    mean, worst, bound = float(gap_S.mean()), float(gap_S.max()), learner.config.play.max_logprob_gap
    shared = all(engine.shares_weights for engine in trained_engines(learner.agent))
    if bound is not None:
        found, allowed = mean, bound
    elif shared and next(learner.model.parameters()).dtype == torch.float32:
        found, allowed = worst, 1e-3
    else:
        found, allowed = mean, 0.1
    if not found <= allowed:  # Not-a-number too.
        raise TrainingHalted(
            f"the engine's log-probs differ from the trainer's by {found:.3g} (at most {allowed} expected, "
            "max_logprob_gap): they do not run the same weights, template or arithmetic, and training on would be "
            "training on noise"
        )
    return {
        "sampling/sampling_logp_difference/mean": mean,
        "sampling/sampling_logp_difference/max": worst,
        **dict(zip(_QUANTILES, np.quantile(gap_S, list(_QUANTILES.values())).tolist(), strict=True)),
    }
