"""What the learner thinks of a batch before it learns from it: only what the recipe asks for.

The reference's log-probs for a KL, the learner's own for a correction. Without one the ratio is to what the engine said
of its tokens, and nothing is computed here.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from palaestra.trainers.batch import Batch, Seen
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.critic import Critic
from palaestra.trainers.forward import token_logprobs
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.kl import KL
from palaestra.trainers.packed import pack
from palaestra.trainers.passes import passes
from palaestra.trainers.scale.ranks import Ranks

Scores = tuple[NDArray[np.float32], ...]
"""One array a sample, over its sampled tokens."""


def look(learner: Learner[GRPOConfig], batch: Batch) -> Seen:
    """Score a batch. It costs nothing where the recipe asks for nothing."""
    config, reference = learner.config, None
    if learner.reference is not None:
        with learner.as_reference() as model:
            reference, _ = _scored(model, batch, config, learner.ranks)
    corrects = config.recipe.correction is not None
    old, values = None, None
    if corrects or learner.critic is not None:
        old, values = _scored(learner.model, batch, config, learner.ranks, learner.critic)
    if reference is not None and config.recipe.kl.kl_in_reward:
        return Seen(None, old if corrects else None, _costs(config.recipe.kl, batch, reference, old), values)
    return Seen(reference, old if corrects else None, values=values)


def _costs(kl: KL, batch: Batch, reference: Scores, old: Scores | None) -> tuple[NDArray[np.float64], ...]:
    """What each token costs for where it has moved from the reference, until now."""
    found = []
    for i, episode in enumerate(batch.episodes):
        sampled = [row.logprobs[row.sampled] for row in episode.rows]
        said = torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *sampled]) if old is None else old[i])
        found.append(kl.beta * kl(said, torch.from_numpy(reference[i])).numpy().astype(np.float64))
    return tuple(found)


def _scored(
    model: Any, batch: Batch, config: GRPOConfig, ranks: Ranks, critic: Critic | None = None
) -> tuple[Scores, Scores | None]:
    """The log-probs of each sample's tokens under a model, and what a critic expects before each of them."""
    found = [np.zeros(0, np.float32)] * len(batch.samples)
    expected = list(found)
    device = next(model.parameters()).device
    # In the same parts as `update`: then both score the same rows together.
    for part in batch.mini_batches(config.optimizer.num_mini_batches):
        speaking = [i for i in part if batch.lengths[i]]
        if not speaking:
            continue
        packed = pack([batch.episodes[i] for i in speaking], [0.0] * len(speaking)).to(device)
        said_N, values_N = torch.zeros_like(packed.sampled_logprobs_N), torch.zeros_like(packed.sampled_logprobs_N)
        with torch.no_grad():
            for micro, counts in passes(model, packed, config.optimizer.micro_batch_tokens, ranks):
                scores = token_logprobs(model, micro, config.play.temperature)
                if counts:
                    said_N[micro.origin_N] = scores.logprobs_N
                    if critic is not None:
                        values_N[micro.origin_N[micro.sampled_N]] = critic.values(scores.hidden_SD)
        ranks.add(said_N)
        for i, said, value in zip(speaking, packed.by_episode(said_N), packed.by_episode(values_N), strict=True):
            found[i], expected[i] = said, value
    return tuple(found), None if critic is None else tuple(expected)
