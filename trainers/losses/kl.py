"""How far the policy has moved from a reference."""

import torch
from torch import Tensor

_LARGEST = 10.0


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Per token `exp(-d) + d - 1` with `d = logprob - reference`: never negative, unbiased, small variance.

    Clamped at 10, as a single token that the reference thinks impossible would otherwise be the whole loss.
    """
    difference = (logprobs - reference).clamp(-20.0, 20.0)
    return (torch.exp(-difference) + difference - 1).clamp(max=_LARGEST)
