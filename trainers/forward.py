"""Log-probs of a batch's tokens under a model. Only this file knows about padding.

Rows of similar length share a micro-batch: on a CPU this is the one optimisation of training that pays.
"""

from typing import Any

import torch
from torch import Tensor

from palaestra.agents.head import head_of
from palaestra.trainers.packed import Packed

_BUCKET = 1.35
"""The longest row of a micro-batch is at most this factor longer than its shortest."""


def micro_batches(packed: Packed, max_tokens: int) -> list[Packed]:
    """Split by row into parts of at most `max_tokens` padded tokens (a longer row stands alone), similar in length."""
    lengths = packed.lengths.tolist()
    parts: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (lengths[row], row)):
        if (
            not parts
            or lengths[row] > _BUCKET * lengths[parts[-1][0]]
            or lengths[row] * (len(parts[-1]) + 1) > max_tokens
        ):
            parts.append([])
        parts[-1].append(row)
    return [packed.select(part) for part in parts]


def token_logprobs(model: Any, packed: Packed, temperature: float = 1.0) -> Tensor:
    """Log-prob of each sampled token given what stands before it, shape [N]; 0 at tokens nobody sampled.

    Rows are padded on the right and attention is causal, so padding changes nothing. The head sees only the places
    before sampled tokens.
    """
    lengths_R = packed.lengths
    begins_R = lengths_R.cumsum(0) - lengths_R
    places_N = torch.arange(len(packed.ids_N), device=packed.ids_N.device) - begins_R[packed.row_N]
    ids_RL = packed.ids_N.new_zeros((len(lengths_R), int(lengths_R.max())))
    ids_RL[packed.row_N, places_N] = packed.ids_N
    hidden_RLD = model.base_model(input_ids=ids_RL, use_cache=False).last_hidden_state
    before_SD = hidden_RLD[packed.row_N[packed.sampled_N], places_N[packed.sampled_N] - 1]
    logits_SV = head_of(model)(before_SD) / temperature
    logprobs_S = -torch.nn.functional.cross_entropy(logits_SV, packed.ids_N[packed.sampled_N], reduction="none")
    return torch.zeros_like(packed.sampled_logprobs_N).masked_scatter(packed.sampled_N, logprobs_S)
