"""The float32 master weights that an optimizer updates, for any dtype of the model.

A weight in bfloat16 has eight significant bits, so updates of a small learning rate would be rounded away. So each such
trained weight has a float32 copy, its master. As soon as the backward pass has computed a gradient, the gradient is
added to a float32 sum and freed, so that many micro-batches lose no bits. After a step the master is rounded into the
weight of the model, which engine and learner share. A float32 weight is its own master, and nothing is copied.

Of a sharded weight the master is this rank's shard, as a plain tensor in the same memory: an optimizer needs to know
nothing of ranks.
"""

import weakref
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from palaestra.trainers.scale.fsdp import is_shard, own_part


class Masters:
    """The trained parameters of a model, by name, and the master weights that the optimizer updates."""

    def __init__(self, model: Any) -> None:
        self.trained: dict[str, Parameter] = {
            name: weight for name, weight in model.named_parameters() if weight.requires_grad
        }
        """Trained parameters of the model."""
        self.stepped: dict[str, Parameter] = {name: _master(weight) for name, weight in self.trained.items()}
        """Master weights of the optimizer, in the same order."""
        self._sums: dict[str, Tensor] = {}
        for name in self.copies:
            self.trained[name].register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                _adding(weakref.ref(self), name)
            )

    @property
    def copies(self) -> dict[str, Parameter]:
        """Return the float32 master weights that are not parameters of the model."""
        return {name: self.stepped[name] for name, weight in self.trained.items() if weight.dtype != torch.float32}

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale the gradient sums so that their norm is at most `max_norm`. Return the norm before."""
        sums = [self._sums.get(name, weight.grad) for name, weight in self.trained.items()]
        gradients = [total for total in sums if total is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        torch.nn.utils.clip_grads_with_norm_([SimpleNamespace(grad=total) for total in gradients], max_norm, norm)  # type: ignore[misc]
        return norm

    def take_gradients(self, names: Iterable[str]) -> None:
        """Move the gradient sums of these weights to their masters, which must be on the model's device."""
        for name in names:
            weight, master = self.trained[name], self.stepped[name]
            if name in self._sums:
                master.grad = self._sums.pop(name)
            elif is_shard(weight):
                master.data = own_part(weight.detach())  # A pass may have moved it.
                master.grad, weight.grad = None if weight.grad is None else own_part(weight.grad), None

    def drop_gradients(self) -> None:
        """Discard all gradients."""
        self._sums.clear()
        for weight in (*self.trained.values(), *self.stepped.values()):
            weight.grad = None

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
            self.stepped[name].copy_(own_part(tensor))
        self.round_back()

    def add(self, name: str, weight: Tensor) -> None:
        """Add the gradient of a model weight to the sum of its gradients, and free the gradient."""
        assert weight.grad is not None
        if name in self._sums:
            self._sums[name] += weight.grad
        else:
            self._sums[name] = weight.grad.float()
        weight.grad = None


def _master(weight: Parameter) -> Parameter:
    """Return what an optimizer steps in place of a weight of the model."""
    if is_shard(weight):
        return Parameter(own_part(weight.detach()))
    return weight if weight.dtype == torch.float32 else Parameter(weight.detach().float())


def _adding(masters: "weakref.ref[Masters]", name: str) -> Any:
    """Return a gradient hook of a weight. It refers to the masters weakly, so that a learner can be freed."""

    def hook(weight: Tensor) -> None:
        live_masters = masters()
        if live_masters is not None and weight.grad is not None:
            live_masters.add(name, weight)

    return hook
