"""How far the policy has moved from a reference, estimated token by token from `d = logprob - reference`.

All three have the KL as their mean over what the policy samples, or nearly so; as a loss they differ. k1 is unbiased as
a figure, but as a loss its gradient is noise around zero: it does not pull. k2's gradient is that of the KL itself. k3
is never negative, unbiased as a figure, has little variance, and pulls (arXiv 2402.03300 uses it).

No torch is imported here: `--help` reads the options.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from palaestra.trainers.checked import NOT_NEGATIVE, check_fields

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 10.0
_FARTHEST = 20.0


@dataclass(frozen=True, slots=True)
class KL:
    """A penalty for leaving the policy that the run began with."""

    beta: Annotated[float, NOT_NEGATIVE] = 0.0
    """Its weight in the loss; 0 for none."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How it is estimated."""
    kl_in_reward: bool = False
    """Charge it to the reward, token by token, in place of the loss; k1 is usual there."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, logprobs: "Tensor", reference: "Tensor") -> "Tensor":
        """An estimate for each token."""
        return ESTIMATORS[self.kl_estimator](logprobs, reference)


def k1(logprobs: "Tensor", reference: "Tensor") -> "Tensor":
    """`d`."""
    return logprobs - reference


def k2(logprobs: "Tensor", reference: "Tensor") -> "Tensor":
    """`d * d / 2`: never negative, slightly biased as a figure."""
    return (logprobs - reference).square() / 2


def k3(logprobs: "Tensor", reference: "Tensor") -> "Tensor":
    """`exp(-d) + d - 1`.

    Clamped at 10, as a single token that the reference thinks impossible would otherwise be the whole loss.
    """
    difference = (logprobs - reference).clamp(-_FARTHEST, _FARTHEST)
    return ((-difference).exp() + difference - 1).clamp(max=_LARGEST)


ESTIMATORS: Mapping[str, Callable[["Tensor", "Tensor"], "Tensor"]] = {"k1": k1, "k2": k2, "k3": k3}
