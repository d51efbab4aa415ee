"""Losses that limit tokens with a large covariance of log-prob and advantage, because these reduce the entropy most.

Clip-Cov leaves out a few of these tokens; KL-Cov adds a KL penalty to those with the largest covariance (arXiv
2505.22617). The covariance of a token is `(logprob - mean)(advantage - mean)`, with means over the tokens of one
forward pass. So, unlike all other losses, these depend a little on how a mini-batch is split (`micro_batch_tokens`).
This module does not import torch at run time, because `--help` reads its options.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from palaestra.errors import ConfigError
from palaestra.trainers.losses.policy import Clip, PolicyLoss
from palaestra.trainers.validation import NOT_NEGATIVE, check_fields

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN = Clip(0.2, 0.2, None)


@dataclass(frozen=True, slots=True)
class ClipCov:
    """The loss of `Clip`, without a few random tokens among those whose covariance is between two bounds."""

    clip_cov_ratio: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of all tokens that is left out; only tokens within the bounds are left out."""
    clip_cov_low: float = 1.0
    """Smallest covariance of a token that may be left out."""
    clip_cov_high: float = 5.0
    """Largest covariance of a token that may be left out."""
    within: Clip = field(default=_PLAIN)
    """The clip of all other tokens."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.clip_cov_low >= self.clip_cov_high:
            raise ConfigError(
                f"clip_cov_low is {self.clip_cov_low} and clip_cov_high {self.clip_cov_high}; the first must be smaller"
            )

    def __call__(self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor") -> PolicyLoss:
        """Return the clipped loss. Tokens that are left out have loss 0 and no gradient, but count in the mean."""
        result = self.within(logprobs_S, old_S, advantages_S, row_S)
        covariance_S = covariances(logprobs_S, advantages_S)
        there_S = (covariance_S > self.clip_cov_low) & (covariance_S < self.clip_cov_high)
        places = there_S.nonzero()[:, 0]
        count = min(len(places), max(int(self.clip_cov_ratio * len(logprobs_S)), 1))
        # Chosen by the last digits of the old log-probs, which are as good as random, so that a run is repeatable.
        dice = (old_S[places].double() * 1e6).frac().abs()
        kept_S = there_S.new_ones(len(logprobs_S))
        kept_S[places[dice.argsort()[:count]]] = False
        high_S = ~kept_S if result.high_S is None else result.high_S | ~kept_S
        return PolicyLoss(result.loss_S * kept_S, result.low_S, high_S)


@dataclass(frozen=True, slots=True)
class KLCov:
    """`-ratio A`, plus a penalty `|logprob - old|` for the tokens with the largest covariance."""

    kl_cov_ratio: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """Share of all tokens that get the penalty, the largest covariances first."""
    kl_cov_coef: Annotated[float, NOT_NEGATIVE] = 1.0
    """Coefficient of the penalty `|logprob - old|`."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor") -> PolicyLoss:
        """Return the loss with the penalty. No token is clipped."""
        moved_S = logprobs_S - old_S
        count = max(int(self.kl_cov_ratio * len(logprobs_S)), 1)
        held_S = moved_S.new_zeros(len(moved_S))
        held_S[covariances(logprobs_S, advantages_S).topk(min(count, len(moved_S))).indices] = self.kl_cov_coef
        return PolicyLoss(-moved_S.clamp(max=10.0).exp() * advantages_S + held_S * moved_S.abs())


def covariances(logprobs_S: "Tensor", advantages_S: "Tensor") -> "Tensor":
    """Return the contribution of each token to the covariance of log-prob and advantage."""
    detached_S = logprobs_S.detach()
    return (detached_S - detached_S.mean()) * (advantages_S - advantages_S.mean())
