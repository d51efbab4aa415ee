"""Linear layers by oneDNN while a learner computes on an x86 CPU.

torch multiplies float32 matrices with MKL, which uses half the width of an AMD CPU's AVX-512. oneDNN, which torch has
too, uses all of it: an EPYC made 153 to 239 GFLOPS a core in place of 93 to 110. The sums have another order, so the
last bits differ. Left out: models that are too small to gain, and other data types, for which torch chooses oneDNN
itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from palaestra.agents.engines.packed_layers import can_pack, packed_weights

_fast: WeakSet[torch.nn.Module] = WeakSet()
"""Layers that compute with oneDNN now, and embeddings beside them."""
_PLAIN = (Tensor, torch.nn.Parameter)


@contextmanager
def fast_linear(model: Any) -> Iterator[None]:
    """Compute the linear layers of a model with oneDNN during a `with` block, if that helps this model. Backward passes
    do so wherever they run; recomputed activations need the block.
    """
    helps = can_pack(model) and packed_weights(model)
    layers: list[Any] = [layer for layer in model.modules() if helps and type(layer) is torch.nn.Linear]
    tables: list[Any] = [layer for layer in model.modules() if helps and _is_plain_table(layer)]
    for layer in layers:
        layer.forward = partial(_forward, layer)
    for table in tables:
        table.forward = partial(_rows, table)
    _fast.update([*layers, *tables])
    try:
        yield
    finally:
        for layer in [*layers, *tables]:
            del layer.forward
            _fast.discard(layer)


def _is_plain_table(layer: torch.nn.Module) -> bool:
    """Return whether a layer only looks rows up, with an ordinary gradient."""
    return type(layer) is torch.nn.Embedding and not (layer.max_norm or layer.sparse or layer.scale_grad_by_freq)


def linear_of(layer: torch.nn.Module) -> Callable[..., Tensor]:
    """Return the function that multiplies with this layer's weight now: torch's `linear`, or that of oneDNN."""
    return _linear if layer in _fast else linear


def gradient_owner(layer: Any) -> Tensor | None:
    """Return the layer's weight if a backward pass may add to its gradient in place, otherwise None.

    This saves a matrix of the weight's size in each micro-batch, and adding it up.
    """
    weight = layer.weight
    hooked = weight._backward_hooks or weight._post_accumulate_grad_hooks
    return weight if layer in _fast and weight.dtype == torch.float32 and not hooked else None


def gradient_sum(owner: Tensor) -> Tensor:
    """Return the gradient of a weight, to add to; zeros at first."""
    if owner.grad is None:
        owner.grad = torch.zeros_like(owner)
    return owner.grad


def _forward(layer: torch.nn.Linear, input: Tensor) -> Tensor:
    """Return what the layer's own `forward` returns. Its weight is read now, since sharding replaces it."""
    return _linear(input, layer.weight, layer.bias)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what `torch.nn.functional.linear` returns."""
    if not input.numel() or any(type(each) not in _PLAIN or each.dtype != torch.float32 for each in (input, weight)):
        return linear(input, weight, bias)
    result: Tensor = _Product.apply(input.reshape(-1, input.shape[-1]), weight)  # type: ignore[no-untyped-call]
    result = result.view(*input.shape[:-1], len(weight))
    return result if bias is None else result + bias


def _rows(table: torch.nn.Embedding, ids: Tensor) -> Tensor:
    """Return what the table's own `forward` returns."""
    if (owner := gradient_owner(table)) is None:
        return embedding(ids, table.weight, table.padding_idx)
    rows: Tensor = _Rows.apply(table.weight, ids, owner, table.padding_idx)  # type: ignore[no-untyped-call]
    return rows


class _Rows(torch.autograd.Function):
    """Rows of a table, whose backward pass adds to the table's gradient in place."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, owner: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.owner, ctx.padding = owner, padding
        return weight[ids]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, ...]:
        (ids,) = ctx.saved_tensors
        if ctx.padding is not None:
            gradient = gradient * (ids != ctx.padding)[..., None]
        gradient_sum(ctx.owner).index_add_(0, ids.flatten(), gradient.flatten(0, -2))
        return None, None, None, None


class _Product(torch.autograd.Function):
    """The product of a matrix and the transpose of another one, with its gradients."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return onednn_product(left, right)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        gradient = gradient.contiguous()  # That of a sum has strides of 0.
        by_left = onednn_product(gradient, right.T) if ctx.needs_input_grad[0] else None
        by_right = onednn_product(gradient.T, left.T) if ctx.needs_input_grad[1] else None
        return by_left, by_right


def onednn_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of a matrix and the transpose of another one."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return product
