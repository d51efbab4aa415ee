"""Policy losses: the loss of each sampled token, from its present log-prob, its old log-prob and its advantage.

A loss is a function `(logprobs, old, advantages, rows) -> PolicyLoss`, over sampled tokens only. This module does not
import torch at run time, because `--help` reads its options.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from palaestra.errors import ConfigError
from palaestra.trainers.validation import POSITIVE, check_fields

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_LOG_RATIO = 10.0
"""Largest log ratio; its exp is 22,026. Larger ratios are clamped."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of each sampled token before weighting, and two masks of the tokens that were clipped from below and
    from above. A mask is None if the loss has no such clip. The metrics `clip_ratio/*` count the masks.
    """

    loss_S: "Tensor"
    low_S: "Tensor | None" = None
    high_S: "Tensor | None" = None

    @property
    def clipped_low(self) -> int:
        """Return the number of tokens clipped from below."""
        return 0 if self.low_S is None else int(self.low_S.sum())

    @property
    def clipped_high(self) -> int:
        """Return the number of tokens clipped from above."""
        return 0 if self.high_S is None else int(self.high_S.sum())


@dataclass(frozen=True, slots=True)
class Clip:
    """The clipped loss of PPO: `-min(ratio A, clip(ratio, 1 - epsilon, 1 + epsilon_high) A)` with the advantage `A`."""

    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Lower clip of the ratio."""
    epsilon_high: Annotated[float, POSITIVE] = 0.28
    """Upper clip of the ratio."""
    dual_clip: Annotated[float | None, Field(gt=1)] = 10.0
    """c bounds the loss of a token with negative advantage by `-c A`; None means no bound."""
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Ratio that is clipped: that of each token, or `exp(mean log ratio)` of its whole sequence (arXiv 2507.18071).
    With an advantage for each token the latter is GSPO-token, with one for an episode GSPO."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.epsilon > self.epsilon_high:
            raise ConfigError(
                f"epsilon is {self.epsilon} and epsilon_high {self.epsilon_high}, which would hold back what becomes "
                "likelier more than what becomes less likely; expected an epsilon_high of at least epsilon "
                "(--recipe.loss.epsilon, --recipe.loss.epsilon-high)"
            )

    def __call__(self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor") -> PolicyLoss:
        """Return the loss of each token. `row_S` is the index of its token row; a sequence is one row."""
        log_ratio_S = logprobs_S - old_S
        if self.importance_sampling_level == "sequence":
            log_ratio_S = _of_sequence(log_ratio_S, row_S)
        ratio_S = _ratio(log_ratio_S)
        plain_S = -ratio_S * advantages_S
        clipped_S = -ratio_S.clamp(1 - self.epsilon, 1 + self.epsilon_high) * advantages_S
        loss_S = plain_S.maximum(clipped_S)
        if self.dual_clip is not None:
            loss_S = loss_S.minimum(-self.dual_clip * advantages_S).where(advantages_S < 0, loss_S)
        detached_S = ratio_S.detach()
        low_S = (detached_S < 1 - self.epsilon) & (advantages_S < 0)
        high_S = (detached_S > 1 + self.epsilon_high) & (advantages_S > 0)
        return PolicyLoss(loss_S, low_S, high_S)


@dataclass(frozen=True, slots=True)
class CISPO:
    """`-sg(clip(ratio, 1 - epsilon, 1 + epsilon_high)) A logprob` (arXiv 2506.13585): clipped tokens keep a gradient.

    `sg` means that no gradient flows through the ratio. The paper has no lower bound and tunes the upper one. The
    defaults have no lower bound either, and clip ratios at 5.
    """

    epsilon: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Lower clip of the ratio; 1 for none."""
    epsilon_high: Annotated[float, POSITIVE] = 4.0
    """Upper clip of the ratio."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor") -> PolicyLoss:
        """Return the loss. The ratio is detached, so only the log-prob has a gradient."""
        ratio_S = _ratio(logprobs_S.detach() - old_S)
        bounded_S = ratio_S.clamp(1 - self.epsilon, 1 + self.epsilon_high)
        loss_S = -bounded_S * advantages_S * logprobs_S
        return PolicyLoss(loss_S, ratio_S < 1 - self.epsilon, ratio_S > 1 + self.epsilon_high)


@dataclass(frozen=True, slots=True)
class GMPO:
    """`-A exp(mean of clipped log ratios)` of a sequence: a geometric mean, robust to outliers (2507.20673).

    A token's log ratio is clipped only from above if its advantage is positive, and only from below if it is negative,
    as in `Clip`. Use aggregation `sample`, because every token of a sequence has the loss of the whole sequence.
    """

    epsilon_log: Annotated[float, POSITIVE] = 0.4
    """Bound of the absolute log ratio of a token."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor") -> PolicyLoss:
        """Return the loss of each token. `row_S` is the index of its token row; a sequence is one row."""
        log_ratio_S = logprobs_S - old_S
        lower_S = log_ratio_S.clamp(max=self.epsilon_log).where(advantages_S > 0, log_ratio_S)
        bounded_S = lower_S.clamp(min=-self.epsilon_log).where(advantages_S < 0, lower_S)
        rows = int(row_S.max()) + 1
        sums_R = bounded_S.new_zeros(rows).index_add(0, row_S, bounded_S)
        mean_S = (sums_R / row_S.bincount(minlength=rows).clamp(min=1))[row_S]
        detached_S = log_ratio_S.detach()
        low_S = (detached_S < -self.epsilon_log) & (advantages_S < 0)
        high_S = (detached_S > self.epsilon_log) & (advantages_S > 0)
        return PolicyLoss(-advantages_S * mean_S.exp(), low_S, high_S)


@dataclass(frozen=True, slots=True)
class PolicyGradient:
    """`-A logprob` (GPG, arXiv 2504.02546; REINFORCE): no ratio and no clip, for one optimizer step per batch."""

    def __call__(self, logprobs_S: "Tensor", old_S: "Tensor", advantages_S: "Tensor", row_S: "Tensor") -> PolicyLoss:
        """Return the loss; `old_S` is not used."""
        return PolicyLoss(-advantages_S * logprobs_S)


def _ratio(log_ratio_S: "Tensor") -> "Tensor":
    return log_ratio_S.clamp(max=_LARGEST_LOG_RATIO).exp()


def _of_sequence(log_ratio_S: "Tensor", row_S: "Tensor") -> "Tensor":
    """Return for each token the mean log ratio of its row, with a gradient only through the token's own log ratio.

    So the tokens of a row may have different weights. With equal weights the gradient is exactly that of the mean.
    """
    rows = int(row_S.max()) + 1
    sums_R = log_ratio_S.new_zeros(rows).index_add(0, row_S, log_ratio_S.detach())
    mean_S = (sums_R / row_S.bincount(minlength=rows).clamp(min=1))[row_S]
    return mean_S + log_ratio_S - log_ratio_S.detach()
