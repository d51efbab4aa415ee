"""Count what a forward pass keeps for the backward pass, on a model without storage.

Attention and mixtures of experts are replaced by stand-ins that save what their kernels save, because the real ones
need values. Left out: everything else that uses memory (`memory_estimate`).
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.moe import ExpertsInterface
from transformers.modeling_layers import GradientCheckpointingLayer

COUNTING = "palaestra_counting"
"""Name of the stand-ins, as transformers knows them."""


@lru_cache(maxsize=64)
def activation_bytes(model: Any, tokens: int) -> tuple[int, int] | None:
    """Return `kept_bytes` for this many tokens. Return None if the forward pass needs values."""
    try:
        return kept_bytes(model, torch.zeros((1, tokens), dtype=torch.long, device="meta"))
    except Exception:  # Each architecture raises errors of its own.
        return None


def kept_bytes(model: Any, ids: Tensor) -> tuple[int, int]:
    """Return the bytes that a forward pass keeps for the backward pass: of one layer, and of everything outside of
    layers.
    """
    weight_storages = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    saved_tensors: dict[int, tuple[Tensor, bool]] = {}
    inside: list[bool] = []
    """Holds an item while a layer is computed."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]

    def keep(tensor: Tensor) -> Tensor:
        # Keep the tensor alive, so that no other storage gets the same address.
        if (name := tensor.untyped_storage()._cdata) not in weight_storages:
            saved_tensors.setdefault(name, (tensor, bool(inside)))
        return tensor

    hooks = [layer.register_forward_pre_hook(lambda *_: inside.append(True)) for layer in layers]
    hooks += [layer.register_forward_hook(lambda *_: inside.clear()) for layer in layers]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.base_model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    sizes = [(tensor.untyped_storage().nbytes(), in_layer) for tensor, in_layer in saved_tensors.values()]
    in_layers = sum(size for size, in_layer in sizes if in_layer)
    return in_layers // max(1, len(layers)), sum(size for size, _ in sizes) - in_layers


class _Kept(torch.autograd.Function):
    """Saves what an attention kernel saves: its inputs, its output, and one number per token and head."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return an output of the right shape."""
        out = torch.empty_like(query)
        ctx.save_for_backward(query, keys, values, out, query.new_empty(query.shape[:-1]))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        """Do nothing. Only the forward pass is counted, so this is never called."""
        return None, None, None


def _linear_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Stand in for an attention kernel when only memory is counted: save what the kernel saves."""
    out: Tensor = _Kept.apply(query, key, value)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None


def _routed_experts(experts: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Stand in for a mixture of experts when only memory is counted: each token goes through as many experts as it is
    routed to, all of them the first one.
    """
    count = top_k_index.shape[-1]
    into, out = (experts.gate_up_proj if experts.has_gate else experts.up_proj)[0], experts.down_proj[0]
    if experts.is_transposed:
        into, out = into.T, out.T
    inner = torch.nn.functional.linear(hidden.repeat_interleave(count, dim=0), into)
    inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
    weighted = torch.nn.functional.linear(inner, out) * top_k_weights.reshape(-1, 1)
    return weighted.view(-1, count, weighted.shape[-1]).sum(dim=1)


def register_counting() -> None:
    """Make the stand-ins known to transformers, under the name COUNTING."""
    AttentionInterface.register(COUNTING, _linear_attention)
    ExpertsInterface.register(COUNTING, _routed_experts)
