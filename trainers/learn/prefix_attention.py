"""Attention over a layout in which shared prefixes are stored once (`shared`), for stock models.

Each segment attends causally to itself, and all that follows a segment attends to the whole segment. Every part is one
call of a fused kernel, which returns the log-sum-exp of its scores; with it the parts are merged exactly. In the
backward pass each part's kernel gets the merged output and log-sum-exp, and the gradients of the parts are added.

Models use it by its name among transformers' attention functions. Without a layout it behaves as `sdpa`, so other users
of the model (an engine, `generate`) are not affected. The kernel that stores all scores is never used for a layout.
Refused: the options in `UNSERVED`, and values whose width differs from that of the keys.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from palaestra.errors import UsageError
from palaestra.trainers.learn.prefix_trie import Layout

NAME = "palaestra"
"""Name of this function among transformers' attention functions."""
UNSERVED = ("softcap", "sliding_window", "s_aux", "position_bias", "cache", "indexer_mask")
"""Keyword options of attention in some models that a layout does not support."""
_FLASH_WIDTH = 256
"""Largest head width that flash attention supports on a GPU."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Queries and keys of one kernel call, as positions in the layout."""

    queries: Any
    """A slice or a tensor of indices."""
    keys: Any
    causal: bool
    lengths: tuple[Tensor, Tensor, int, int] | None = None
    """Cumulative ends (queries, keys) and maximum lengths (queries, keys) if the call holds several sequences."""


@dataclass(frozen=True)
class AttentionPlan:
    """The attention calls for a layout. Every layer of the model gets the plan as a keyword argument."""

    layout: Layout
    device: torch.device

    @cached_property
    def by_segment(self) -> list[AttentionCall]:
        """Return the calls of each segment on itself, then those of the tokens that follow it."""
        spans = [(slice(segment.begin, segment.begin + segment.size), segment.end) for segment in self.layout.segments]
        calls = [AttentionCall(span, span, True) for span, _ in spans]
        return calls + [AttentionCall(slice(span.stop, end), span, False) for span, end in spans if end > span.stop]

    @cached_property
    def by_depth(self) -> list[AttentionCall]:
        """Return one call of all segments on themselves, then one per depth for the tokens that follow: few calls, for
        a GPU.
        """
        segments = self.layout.segments
        everything = slice(0, self.layout.size)
        calls = [
            AttentionCall(everything, everything, True, self._lengths(*[[segment.size for segment in segments]] * 2))
        ]
        for depth in range(1 + max(segment.depth for segment in segments)):
            shared = [
                segment for segment in segments if segment.depth == depth and segment.end > segment.begin + segment.size
            ]
            if shared:
                keys = [(segment.begin, segment.begin + segment.size) for segment in shared]
                queries = [(segment.begin + segment.size, segment.end) for segment in shared]
                lengths = self._lengths(*([b - a for a, b in each] for each in (queries, keys)))
                calls.append(AttentionCall(self._joined(queries), self._joined(keys), False, lengths))
        return calls

    def _joined(self, ranges: list[tuple[int, int]]) -> Tensor:
        return torch.cat([torch.arange(*each, device=self.device) for each in ranges])

    def _lengths(self, queries: list[int], keys: list[int]) -> tuple[Tensor, Tensor, int, int]:
        ends = (torch.tensor([0, *accumulate(each)], dtype=torch.int32, device=self.device) for each in (queries, keys))
        return *ends, max(queries), max(keys)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused attention kernel over [1, heads, tokens, width]. There may be fewer key heads than query heads."""

    name: str
    calls: Callable[[AttentionPlan], list[AttentionCall]]
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


def planned_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention with the signature of transformers, over a layout if there is a plan."""
    if plan is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    unserved = [name for name in UNSERVED if options.get(name) is not None] + ["dropout"] * bool(dropout)
    if unserved or query.shape[-1] != value.shape[-1] or options.get("is_causal") is False:
        reason = ", ".join(unserved) or "values of another width than keys, or attention that is not causal"
        raise UsageError(f"attention over rows that share beginnings cannot have {reason}; pad the rows instead")
    assert query.shape[0] == 1 and query.shape[2] == key.shape[2] == plan.layout.size, "a plan is for its own tokens"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = _Planned.apply(query, key, value, plan, scale)  # type: ignore[no-untyped-call]
    return out, None


AttentionInterface.register(NAME, planned_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # This is for passes without a plan.


class _Planned(torch.autograd.Function):
    """Maps [1, heads, tokens, width] to [1, tokens, heads, width], as models expect it."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
        kernel = kernel_for(query.device, query.dtype, query.shape[-1])
        # Merge in at least float32: a shorter type would round once per depth.
        long = torch.promote_types(query.dtype, torch.float32)
        merged = query.new_empty([query.shape[i] for i in (0, 2, 1, 3)], dtype=long).transpose(1, 2)
        lse = query.new_empty(query.shape[:3], dtype=long)
        for call in kernel.calls(plan):
            at = call.queries
            out, part_lse = kernel.forward(query[:, :, at], key[:, :, call.keys], value[:, :, call.keys], call, scale)
            if call.causal:  # The causal calls come first, and each token is a query of exactly one of them.
                merged[:, :, at], lse[:, :, at] = out.to(long), part_lse.to(long)
                continue
            before = lse[:, :, at]
            after = torch.logaddexp(before, part_lse)
            old_factor, new_factor = ((each - after).exp()[..., None] for each in (before, part_lse))
            merged[:, :, at] = merged[:, :, at] * old_factor + out * new_factor
            lse[:, :, at] = after
        result = merged.transpose(1, 2).to(query.dtype)
        ctx.save_for_backward(query, key, value, result, lse)
        ctx.plan, ctx.scale, ctx.kernel = plan, scale, kernel
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_result: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, result, lse = ctx.saved_tensors
        by_out, merged = by_result.transpose(1, 2), result.transpose(1, 2)
        by_query, by_key, by_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for call in ctx.kernel.calls(ctx.plan):
            at, keys = call.queries, call.keys
            gradients = ctx.kernel.backward(
                by_out[:, :, at],
                query[:, :, at],
                key[:, :, keys],
                value[:, :, keys],
                merged[:, :, at],
                lse[:, :, at],
                call,
                ctx.scale,
            )
            for total, places, part in zip((by_query, by_key, by_value), (at, keys, keys), gradients, strict=True):
                if call.causal:
                    total[:, :, places] = part
                else:
                    total[:, :, places] += part
        return by_query, by_key, by_value, None, None


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
    """Repeat the key heads so that there are as many as query heads."""
    return [each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in keys]


def _segments_of(plan: AttentionPlan) -> list[AttentionCall]:
    return plan.by_segment


CPU_FLASH = Kernel("flash attention on the CPU", _segments_of, _cpu_forward, _cpu_backward)
CUDA_FLASH = Kernel("flash attention", lambda plan: plan.by_depth, _flash_forward, _flash_backward)
CUDA_EFFICIENT = Kernel("memory-efficient attention", _segments_of, _efficient_forward, _efficient_backward)
