"""Score a batch before the update: log-probs of reference and learner, and critic values, if the recipe needs them.

The KL needs the log-probs of the reference, and a correction needs the log-probs of the learner. Without a correction
the ratio refers to the engine's log-probs, so the learner's are not computed.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.learn.forward import token_logprobs
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.packing import pack
from palaestra.trainers.learn.rank_passes import passes
from palaestra.trainers.losses.critic import Critic
from palaestra.trainers.losses.kl import KL
from palaestra.trainers.losses.onednn_linear import fast_linear
from palaestra.trainers.scale.ranks import Ranks

PerSample = tuple[NDArray[np.float32], ...]
"""One array per sample, over its sampled tokens."""


def score_batch(learner: Learner[GRPOConfig], batch: Batch) -> BatchScores:
    """Return the scores of a batch. A field that the recipe does not need is None and is not computed."""
    config, reference = learner.config, None
    if learner.reference is not None:
        with learner.as_reference() as model:
            reference, _ = _scored(model, batch, config, learner.ranks)
    corrects = config.recipe.correction is not None
    old, values = None, None
    if corrects or learner.critic is not None:
        old, values = _scored(learner.model, batch, config, learner.ranks, learner.critic)
    if reference is not None and config.recipe.kl.kl_in_reward:
        return BatchScores(None, old if corrects else None, _costs(config.recipe.kl, batch, reference, old), values)
    return BatchScores(reference, old if corrects else None, values=values)


def _costs(kl: KL, batch: Batch, reference: PerSample, old: PerSample | None) -> tuple[NDArray[np.float64], ...]:
    """Return the KL cost of each sampled token, one array per sample."""
    token_costs = []
    for i, episode in enumerate(batch.episodes):
        sampled = [row.logprobs[row.sampled] for row in episode.rows]
        policy_logprobs = torch.from_numpy(
            np.concatenate([np.zeros(0, np.float32), *sampled]) if old is None else old[i]
        )
        token_costs.append(kl.beta * kl(policy_logprobs, torch.from_numpy(reference[i])).numpy().astype(np.float64))
    return tuple(token_costs)


def _scored(
    model: Any, batch: Batch, config: GRPOConfig, ranks: Ranks, critic: Critic | None = None
) -> tuple[PerSample, PerSample | None]:
    """Return the log-probs of each sample's tokens under a model, and the critic's value before each token. The values
    are None if there is no critic.
    """
    logprobs = [np.zeros(0, np.float32)] * len(batch.samples)
    critic_values = list(logprobs)
    device = next(model.parameters()).device
    # The same mini-batches as in `update`, so that both score the same rows together.
    for mini_batch in batch.mini_batches(config.optimizer.num_mini_batches):
        nonempty = [i for i in mini_batch if batch.lengths[i]]
        if not nonempty:
            continue
        packed = pack([batch.episodes[i] for i in nonempty], [0.0] * len(nonempty)).to(device)
        logprobs_N, values_N = torch.zeros_like(packed.sampled_logprobs_N), torch.zeros_like(packed.sampled_logprobs_N)
        with torch.no_grad(), fast_linear(model):  # As in `update`, so that the last bits are equal.
            for micro, counts in passes(model, packed, config.optimizer.micro_batch_tokens, ranks):
                forward_scores = token_logprobs(model, micro, config.play.temperature)
                if counts:
                    logprobs_N[micro.origin_N] = forward_scores.logprobs_N
                    if critic is not None:
                        values_N[micro.origin_N[micro.sampled_N]] = critic.values(forward_scores.hidden_SD)
        ranks.add(logprobs_N)
        if critic is not None:
            ranks.add(values_N)
        for i, sample_logprobs, sample_values in zip(
            nonempty, packed.by_episode(logprobs_N), packed.by_episode(values_N), strict=True
        ):
            logprobs[i], critic_values[i] = sample_logprobs, sample_values
    return tuple(logprobs), None if critic is None else tuple(critic_values)
