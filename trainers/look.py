"""What the learner thinks of a batch before it learns from it: only what the recipe asks for.

Today that is the reference's log-probs, for a KL. Left out: old log-probs of the learner itself; the ratio is to what
the engine said of its tokens.
"""

import numpy as np
import torch

from palaestra.trainers.batch import Batch, Seen
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.forward import micro_batches, token_logprobs
from palaestra.trainers.learner import Learner
from palaestra.trainers.packed import pack


def look(learner: Learner[GRPOConfig], batch: Batch) -> Seen:
    """Score a batch with what stands beside the learner. It costs nothing where the recipe asks for nothing."""
    if learner.reference is None:
        return Seen()
    config = learner.config
    found = [np.zeros(0, np.float32)] * len(batch.samples)
    device = next(learner.reference.parameters()).device
    # In the same parts as `update`: then both score the same rows together.
    for part in batch.mini_batches(config.optimizer.num_mini_batches):
        speaking = [i for i in part if batch.lengths[i]]
        if not speaking:
            continue
        packed = pack([batch.episodes[i] for i in speaking], [0.0] * len(speaking)).to(device)
        said_N = torch.zeros_like(packed.sampled_logprobs_N)
        with torch.no_grad(), learner.as_reference() as reference:
            for micro in micro_batches(reference, packed, config.optimizer.micro_batch_tokens):
                said_N[micro.origin_N] = token_logprobs(reference, micro, config.play.temperature).logprobs_N
        for i, said in zip(speaking, packed.by_episode(said_N), strict=True):
            found[i] = said
    return Seen(tuple(found))
