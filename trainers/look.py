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
            reference = _scored(model, batch, config, learner.ranks)
    corrects = config.recipe.correction is not None
    old = _scored(learner.model, batch, config, learner.ranks) if corrects else None
    if reference is not None and config.recipe.kl.kl_in_reward:
        return Seen(None, old, _costs(config.recipe.kl, batch, reference, old))
    return Seen(reference, old)


def _costs(kl: KL, batch: Batch, reference: Scores, old: Scores | None) -> tuple[NDArray[np.float64], ...]:
    """What each token costs for where it has moved from the reference, until now."""
    found = []
    for i, episode in enumerate(batch.episodes):
        sampled = [row.logprobs[row.sampled] for row in episode.rows]
        said = torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *sampled]) if old is None else old[i])
        found.append(kl.beta * kl(said, torch.from_numpy(reference[i])).numpy().astype(np.float64))
    return tuple(found)


def _scored(model: Any, batch: Batch, config: GRPOConfig, ranks: Ranks) -> Scores:
    """The log-probs of each sample's tokens under a model."""
    found = [np.zeros(0, np.float32)] * len(batch.samples)
    device = next(model.parameters()).device
    # In the same parts as `update`: then both score the same rows together.
    for part in batch.mini_batches(config.optimizer.num_mini_batches):
        speaking = [i for i in part if batch.lengths[i]]
        if not speaking:
            continue
        packed = pack([batch.episodes[i] for i in speaking], [0.0] * len(speaking)).to(device)
        said_N = torch.zeros_like(packed.sampled_logprobs_N)
        with torch.no_grad():
            for micro, counts in passes(model, packed, config.optimizer.micro_batch_tokens, ranks):
                scores = token_logprobs(model, micro, config.play.temperature)
                if counts:
                    said_N[micro.origin_N] = scores.logprobs_N
        ranks.add(said_N)
        for i, said in zip(speaking, packed.by_episode(said_N), strict=True):
            found[i] = said
    return tuple(found)
