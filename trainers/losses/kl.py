"""KL divergence of the policy from a reference, estimated per token from `d = logprob - reference`.

Over sampled tokens, the mean of each of the three estimators is the KL or nearly the KL, but they differ as a loss. k1
is an unbiased metric, but its gradient has mean zero, so as a loss it has no effect. The gradient of k2 is the gradient
of the KL itself. k3 is never negative, is unbiased as a metric, has little variance, and works as a loss (arXiv
2402.03300 uses it).

This module does not import torch at run time, because `--help` reads its options.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from palaestra.trainers.validation import NOT_NEGATIVE, PARTS, check_fields

if TYPE_CHECKING:
    from torch import Tensor

    NameOrEstimator = str | Callable[["Tensor", "Tensor"], "Tensor"]
else:
    NameOrEstimator = Any

KL_ESTIMATORS = {name: name for name in ("k1", "k2", "k3")}
"""KL estimators by name."""
_LARGEST = 10.0
_FARTHEST = 20.0


@dataclass(frozen=True, slots=True)
class KL:
    """A penalty for the distance of the policy from the run's initial policy."""

    beta: Annotated[float, NOT_NEGATIVE] = 0.0
    """Weight of the KL in the loss; 0 for none."""
    kl_estimator: NameOrEstimator = field(default="k3", metadata={PARTS: KL_ESTIMATORS})
    """Estimator of the KL of a token: k1, k2, k3, or a function of the log-probs and those of the reference."""
    kl_in_reward: bool = False
    """Subtract the KL from the reward, token by token, instead of adding it to the loss; k1 is usual there."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logprobs: "Tensor", reference: "Tensor") -> "Tensor":
        """Return an estimate for each token."""
        estimator = ESTIMATORS[self.kl_estimator] if isinstance(self.kl_estimator, str) else self.kl_estimator
        return estimator(logprobs, reference)


def k1(logprobs: "Tensor", reference: "Tensor") -> "Tensor":
    """Return `d`, that is `logprob - reference`."""
    return logprobs - reference


def k2(logprobs: "Tensor", reference: "Tensor") -> "Tensor":
    """Return `d * d / 2`: never negative, slightly biased as a metric."""
    return (logprobs - reference).square() / 2


def k3(logprobs: "Tensor", reference: "Tensor") -> "Tensor":
    """Return `exp(-d) + d - 1`.

    The result is at most 10, because otherwise one token to which the reference gives a tiny probability would dominate
    the loss.
    """
    difference = (logprobs - reference).clamp(-_FARTHEST, _FARTHEST)
    return ((-difference).exp() + difference - 1).clamp(max=_LARGEST)


ESTIMATORS: Mapping[str, Callable[["Tensor", "Tensor"], "Tensor"]] = {"k1": k1, "k2": k2, "k3": k3}
