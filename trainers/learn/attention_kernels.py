"""Fused attention kernels for CPU and CUDA that also return the log-sum-exp of their scores, with backward passes.

Left out: which queries attend to which keys, and merging the results of several calls (`prefix_attention`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from palaestra.errors import UsageError

_FLASH_WIDTH = 256
"""Largest head width that flash attention supports on a GPU."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The queries and keys of one kernel call, given as positions in the layout."""

    queries: Any
    """A slice or a tensor of indices."""
    keys: Any
    causal: bool
    lengths: tuple[Tensor, Tensor, int, int] | None = None
    """Cumulative ends (queries, keys) and maximum lengths (queries, keys) if the call holds several sequences."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused attention kernel over [1, heads, tokens, width]. There may be fewer key heads than query heads."""

    name: str
    variable_length: bool
    """True if one call holds several sequences of different lengths."""
    forward: Callable[[Tensor, Tensor, Tensor, AttentionCall, float], tuple[Tensor, Tensor]]
    """Function that returns the output and the log-sum-exp [1, heads, tokens]."""
    backward: Callable[..., tuple[Tensor, ...]]
    """Function of the output's gradient, queries, keys, values, merged output, merged log-sum-exp, call and scale."""


def kernel_for(device: torch.device, dtype: torch.dtype, width: int) -> Kernel:
    """Return the fused kernel for a layout. Raise `UsageError` if the device has none."""
    if device.type == "cpu":
        return CPU_FLASH
    if device.type != "cuda":
        raise UsageError(f"there is no fused attention kernel for a device of type {device.type!r}; use cpu or cuda")
    half = dtype in (torch.float16, torch.bfloat16)
    if half and width % 8 == 0 and width <= _FLASH_WIDTH and torch.cuda.get_device_capability(device) >= (8, 0):
        return CUDA_FLASH
    return CUDA_EFFICIENT


def _cpu_forward(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, scale: float) -> tuple[Tensor, Tensor]:
    out_and_lse: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, call.causal, scale=scale
    )
    return out_and_lse


def _cpu_backward(
    by_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    call: AttentionCall,
    scale: float,
) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        by_out, query, key, value, out, lse, 0.0, call.causal, scale=scale
    )
    return gradients


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, scale: float
) -> tuple[Tensor, Tensor]:
    assert call.lengths is not None
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        *_flat(query, key, value), *call.lengths, 0.0, call.causal, False, scale=scale
    )
    return out.transpose(0, 1)[None], lse[None]


def _flash_backward(
    by_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    call: AttentionCall,
    scale: float,
) -> tuple[Tensor, ...]:
    assert call.lengths is not None
    noise = torch.zeros(2, dtype=torch.uint64, device=query.device)  # There is no dropout.
    gradients = torch.ops.aten._flash_attention_backward(
        *_flat(by_out, query, key, value, out),
        lse[0].contiguous(),
        *call.lengths,
        0.0,
        call.causal,
        noise,
        torch.empty(0, device=query.device),
        scale=scale,
    )
    return tuple(each.transpose(0, 1)[None] for each in gradients)


def _flat(*tensors: Tensor) -> list[Tensor]:
    """Return each tensor as [tokens, heads, width], the layout for sequences of several lengths."""
    return [each[0].transpose(0, 1).contiguous() for each in tensors]


def _efficient_forward(
    query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, scale: float
) -> tuple[Tensor, Tensor]:
    query, key, value = (each.transpose(1, 2) for each in (query, *_repeated(query, key, value)))
    out, lse, *_ = torch.ops.aten._efficient_attention_forward(
        query, key, value, None, None, None, None, None, 0.0, int(call.causal), True, scale=scale
    )
    return out.transpose(1, 2), lse[:, :, : query.shape[1]]


def _efficient_backward(
    by_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    call: AttentionCall,
    scale: float,
) -> tuple[Tensor, ...]:
    keys = key.shape[1]
    key, value = _repeated(query, key, value)
    size = query.shape[2]
    # The kernel's log-sum-exp is padded, with infinity after the last query.
    lse = torch.nn.functional.pad(lse, (0, -size % 32), value=torch.inf)
    by_out, query, key, value, out = (each.transpose(1, 2) for each in (by_out, query, key, value, out))
    seed = torch.zeros((), dtype=torch.long, device=query.device)  # There is no dropout.
    by_query, by_key, by_value, _ = torch.ops.aten._efficient_attention_backward(
        by_out, query, key, value, None, out, None, None, size, key.shape[1], lse, 0.0, seed, seed,
        int(call.causal), False, scale=scale,
    )  # fmt: skip
    by_key, by_value = (each.unflatten(2, (keys, -1)).sum(3).transpose(1, 2) for each in (by_key, by_value))
    return by_query.transpose(1, 2), by_key, by_value


def _repeated(query: Tensor, *keys: Tensor) -> list[Tensor]:
    """Return the tensors with their key heads repeated until there are as many of them as query heads."""
    return [each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in keys]


CPU_FLASH = Kernel("flash attention on the CPU", False, _cpu_forward, _cpu_backward)
CUDA_FLASH = Kernel("flash attention", True, _flash_forward, _flash_backward)
CUDA_EFFICIENT = Kernel("memory-efficient attention", False, _efficient_forward, _efficient_backward)
