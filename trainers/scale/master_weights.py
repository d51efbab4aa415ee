"""The float32 master weights that an optimizer updates, for any dtype of the model.

A weight in bfloat16 has eight significant bits, so updates of a small learning rate would be rounded away. So each such
trained weight has a float32 copy, its master. As soon as the backward pass has computed a gradient, the gradient is
added to a float32 sum and freed, so that many micro-batches lose no bits. After a step the master is rounded into the
weight of the model, which engine and learner share. A float32 weight is its own master, and nothing is copied.
"""

import weakref
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class Masters:
    """The trained parameters of a model, by name, and the master weights that the optimizer updates."""

    def __init__(self, model: Any) -> None:
        self.trained: dict[str, Parameter] = {
            name: weight for name, weight in model.named_parameters() if weight.requires_grad
        }
        """Trained parameters of the model."""
        self.stepped: dict[str, Parameter] = {
            name: weight if weight.dtype == torch.float32 else Parameter(weight.detach().float())
            for name, weight in self.trained.items()
        }
        """Master weights of the optimizer, in the same order."""
        self._sums: dict[str, Tensor] = {}
        for name in self.copies:
            self.trained[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                _adding(weakref.ref(self), name)
            )

    @property
    def copies(self) -> dict[str, Parameter]:
        """Return the float32 master weights that are not parameters of the model."""
        return {name: master for name, master in self.stepped.items() if master is not self.trained[name]}

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradient sums so that their norm is at most `max_norm`. Return the norm before."""
        sums = [self._sums.get(name, master.grad) for name, master in self.stepped.items()]
        gradients = [total for total in sums if total is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        torch.nn.utils.clip_grads_with_norm_([SimpleNamespace(grad=total) for total in gradients], max_norm, norm)  # type: ignore[misc]
        return norm

    def take_gradients(self, names: Iterable[str]) -> None:
        """Move the gradient sums of these weights to their masters, which must be on the model's device."""
        for name in names:
            if name in self._sums:
                self.stepped[name].grad = self._sums.pop(name)

    def drop_gradients(self) -> None:
        """Discard all gradients."""
        self._sums.clear()
        for master in self.stepped.values():
            master.grad = None

    @torch.no_grad()
    def round_back(self, names: Iterable[str] | None = None) -> None:
        """Copy the masters of these weights, or all, into the model's weights, rounded to its dtype."""
        copies = self.copies
        for name in copies if names is None else [name for name in names if name in copies]:
            self.trained[name].copy_(copies[name])

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy these tensors into the masters, and the masters into the model's weights."""
        for name, tensor in tensors.items():
            self.stepped[name].copy_(tensor)
        self.round_back()

    def add(self, name: str, weight: Tensor) -> None:
        """Add the gradient of a model weight to the sum of its gradients, and free the gradient."""
        assert weight.grad is not None
        if name in self._sums:
            self._sums[name] += weight.grad
        else:
            self._sums[name] = weight.grad.float()
        weight.grad = None


def _adding(masters: "weakref.ref[Masters]", name: str) -> Any:
    """Return a gradient hook of a weight. It refers to the masters weakly, so that a learner can be freed."""

    def hook(weight: Tensor) -> None:
        live_masters = masters()
        if live_masters is not None and weight.grad is not None:
            live_masters.add(name, weight)

    return hook
