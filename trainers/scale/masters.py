"""The float32 parameters that an optimizer steps on, whatever type the model computes in.

A weight in bfloat16 has eight bits: a step of a small learning rate is rounded away. So each such weight that learns
has a float32 copy, its master. As soon as a backward pass has made a weight's gradient, it is added to a float32 sum
and dropped: many micro-batches lose no bits. After a step the master is rounded into the model's own weight, which
engine and learner share. A weight in float32 is its own master, and nothing is copied.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class Masters:
    """The parameters of a model that learn, by name, and what the optimizer has in their place."""

    def __init__(self, model: Any) -> None:
        self.own: dict[str, Parameter] = {
            name: weight for name, weight in model.named_parameters() if weight.requires_grad
        }
        """The model's."""
        self.stepped: dict[str, Parameter] = {
            name: weight if weight.dtype == torch.float32 else Parameter(weight.detach().float())
            for name, weight in self.own.items()
        }
        """The optimizer's, in the same order."""
        self._sums: dict[str, Tensor] = {}
        for name in self.copies:
            self.own[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                _adding(weakref.ref(self), name)
            )

    @property
    def copies(self) -> dict[str, Parameter]:
        """Those of the optimizer's parameters that are not the model's own."""
        return {name: master for name, master in self.stepped.items() if master is not self.own[name]}

    def take_gradients(self) -> None:
        """Give the sums to the masters, which must lie where the model does."""
        for name, total in self._sums.items():
            self.stepped[name].grad = total
        self._sums = {}

    @torch.no_grad()
    def round_back(self) -> None:
        """Have the model compute with the masters as they are now."""
        for name, master in self.copies.items():
            self.own[name].copy_(master)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the masters, and with them the model."""
        for name, tensor in tensors.items():
            self.stepped[name].copy_(tensor)
        self.round_back()

    def add(self, name: str, weight: Tensor) -> None:
        """Take a gradient from the model's weight into its sum."""
        assert weight.grad is not None
        if name in self._sums:
            self._sums[name] += weight.grad
        else:
            self._sums[name] = weight.grad.float()
        weight.grad = None


def _adding(masters: "weakref.ref[Masters]", name: str) -> Any:
    """A hook of a weight. It does not keep the masters of a learner that is gone."""

    def hook(weight: Tensor) -> None:
        known = masters()
        if known is not None and weight.grad is not None:
            known.add(name, weight)

    return hook
