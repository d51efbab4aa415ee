"""The clipped policy loss, with the ratio of each token or of its whole sequence.

A loss is `(logprobs, old, advantages, rows) -> PolicyLoss`, over sampled tokens alone. No torch is imported here:
`--help` reads the options.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from palaestra.trainers.checked import POSITIVE, check_fields

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_LOG_RATIO = 10.0
"""exp of it is 22,026: one token that has become that much likelier is no number to be multiplied further."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of each sampled token, before its weight, and how many were clipped."""

    loss_S: "Tensor"
    clipped_low: int
    clipped_high: int


@dataclass(frozen=True, slots=True)
class Clip:
    """`-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)`."""

    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip of the ratio."""
    epsilon_high: Annotated[float, POSITIVE] = 0.28
    """Upper clip of the ratio."""
    dual_clip: Annotated[float | None, Field(gt=1)] = 10.0
    """c bounds the loss of a token with negative advantage by `-c A`; none for no bound."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Whose ratio is clipped: each token's, or `exp(mean log ratio)` of its whole sequence (arXiv 2507.18071)."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor") -> PolicyLoss:
        """`row_S` is the token row of each token: a sequence is a row."""
        log_ratio_S = logprobs_S - old_S
        if self.importance_sampling_level == "sequence":
            log_ratio_S = _of_sequence(log_ratio_S, row_S)
        ratio_S = log_ratio_S.clamp(max=_LARGEST_LOG_RATIO).exp()
        plain_S = -ratio_S * advantages_S
        clipped_S = -ratio_S.clamp(1 - self.epsilon, 1 + self.epsilon_high) * advantages_S
        loss_S = plain_S.maximum(clipped_S)
        if self.dual_clip is not None:
            loss_S = loss_S.minimum(-self.dual_clip * advantages_S).where(advantages_S < 0, loss_S)
        said_S = ratio_S.detach()
        low = int(((said_S < 1 - self.epsilon) & (advantages_S < 0)).sum())
        high = int(((said_S > 1 + self.epsilon_high) & (advantages_S > 0)).sum())
        return PolicyLoss(loss_S, low, high)


def _of_sequence(log_ratio_S: "Tensor", row_S: "Tensor") -> "Tensor":
    """The mean log ratio of each token's row. Its gradient comes through the token itself, a row's share in each.

    So any weights within a row may be put on it, and with equal ones the gradient is that of the closed form.
    """
    rows = int(row_S.max()) + 1
    sums_R = log_ratio_S.new_zeros(rows).index_add(0, row_S, log_ratio_S.detach())
    mean_S = (sums_R / row_S.bincount(minlength=rows).clamp(min=1))[row_S]
    return mean_S + log_ratio_S - log_ratio_S.detach()
