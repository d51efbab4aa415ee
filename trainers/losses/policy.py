"""The clipped policy loss, token by token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from palaestra.trainers.batch import Batch


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss to add up over micro-batches, and counts of what was clipped in this one."""

    loss: Tensor
    clipped_low: int
    clipped_high: int
    tokens: int


def policy_loss(
    logprobs_N: Tensor,
    batch: Batch,
    *,
    epsilon: float,
    epsilon_high: float,
    dual_clip: float | None,
    denominator: int,
) -> PolicyLoss:
    """`-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)` summed over sampled tokens, over `denominator`.

    The denominator is the token count of the whole mini-batch, so that any split into micro-batches gives the same
    gradient. `dual_clip` c bounds the loss of a token with negative advantage by `-c A`.
    """
    sampled_N = batch.sampled_N
    logprobs_S, old_S, advantages_S = (
        logprobs_N[sampled_N],
        batch.sampled_logprobs_N[sampled_N],
        batch.advantages_N[sampled_N],
    )
    ratio_S = torch.exp(logprobs_S - old_S)
    plain_S = -ratio_S * advantages_S
    clipped_S = -ratio_S.clamp(1 - epsilon, 1 + epsilon_high) * advantages_S
    loss_S = torch.maximum(plain_S, clipped_S)
    if dual_clip is not None:
        loss_S = torch.where(advantages_S < 0, torch.minimum(loss_S, -dual_clip * advantages_S), loss_S)
    with torch.no_grad():
        low = int(((ratio_S < 1 - epsilon) & (advantages_S < 0)).sum())
        high = int(((ratio_S > 1 + epsilon_high) & (advantages_S > 0)).sum())
    return PolicyLoss(loss_S.sum() / denominator, low, high, int(sampled_N.sum()))
