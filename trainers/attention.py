"""Attention over a layout in which common beginnings stand once (`shared`), for stock models.

Each segment attends causally to itself, and all that follows from a segment attends to it as a whole. Every part
is a call of a fused kernel, which returns the log-sum-exp of its scores; parts are merged by it, exactly. Backward,
each part's own kernel is given the merged output and log-sum-exp; the gradients of the parts then add up.

Models reach it by one name among transformers' attention functions. Without a layout the name means what `sdpa` means,
so that whoever else runs the model (an engine, `generate`) notices nothing. The kernel that keeps all scores is never
used for a layout. Left out: whatever `UNSERVED` names, and values of another width than keys; both are refused.
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
from palaestra.trainers.shared import Layout

NAME = "palaestra"
"""Among transformers' attention functions."""
UNSERVED = ("softcap", "sliding_window", "s_aux", "position_bias", "cache", "indexer_mask")
"""What some models ask of attention by these keywords, and a layout cannot have."""
_FLASH_WIDTH = 256
"""The widest head that flash attention takes on a GPU."""


@dataclass(frozen=True, slots=True)
class Call:
    """Queries and keys of one call of a kernel, as places of the layout."""

    queries: Any
    """A slice or a tensor of indices."""
    keys: Any
    causal: bool
    lengths: tuple[Tensor, Tensor, int, int] | None = None
    """Where several sequences lie in it: their ends (queries, keys), and the longest of each."""


@dataclass(frozen=True)
class Plan:
    """The calls of attention over a layout. It goes through a model as a keyword, to every layer."""

    layout: Layout
    device: torch.device

    @cached_property
    def by_segment(self) -> list[Call]:
        """Calls of each segment on itself, then of what follows from each."""
        owns = [(slice(one.begin, one.begin + one.size), one.end) for one in self.layout.segments]
        calls = [Call(own, own, True) for own, _ in owns]
        return calls + [Call(slice(own.stop, end), own, False) for own, end in owns if end > own.stop]

    @cached_property
    def by_depth(self) -> list[Call]:
        """One call of all segments on themselves, one of what follows from those of a depth: few, for a GPU."""
        segments = self.layout.segments
        everything = slice(0, self.layout.size)
        calls = [Call(everything, everything, True, self._lengths(*[[one.size for one in segments]] * 2))]
        for depth in range(1 + max(one.depth for one in segments)):
            shared = [one for one in segments if one.depth == depth and one.end > one.begin + one.size]
            if shared:
                keys = [(one.begin, one.begin + one.size) for one in shared]
                queries = [(one.begin + one.size, one.end) for one in shared]
                lengths = self._lengths(*([b - a for a, b in each] for each in (queries, keys)))
                calls.append(Call(self._joined(queries), self._joined(keys), False, lengths))
        return calls

    def _joined(self, ranges: list[tuple[int, int]]) -> Tensor:
        return torch.cat([torch.arange(*each, device=self.device) for each in ranges])

    def _lengths(self, queries: list[int], keys: list[int]) -> tuple[Tensor, Tensor, int, int]:
        ends = (torch.tensor([0, *accumulate(each)], dtype=torch.int32, device=self.device) for each in (queries, keys))
        return *ends, max(queries), max(keys)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused attention kernel over [1, heads, tokens, width]; there may be fewer heads of keys than of queries."""

    name: str
    calls: Callable[[Plan], list[Call]]
    forward: Callable[[Tensor, Tensor, Tensor, Call, float], tuple[Tensor, Tensor]]
    """Output, and log-sum-exp [1, heads, tokens]."""
    backward: Callable[..., tuple[Tensor, ...]]
    """Of the output's gradient, queries, keys, values, merged output and log-sum-exp, call, scale."""


def kernel_for(device: torch.device, dtype: torch.dtype, width: int) -> Kernel:
    """The kernel that computes attention over a layout; an error where there is none that forgets its scores."""
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
    plan: Plan | None = None,
    **asked: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, over a layout where there is a plan."""
    if plan is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **asked
        )
    unserved = [name for name in UNSERVED if asked.get(name) is not None] + ["dropout"] * bool(dropout)
    if unserved or query.shape[-1] != value.shape[-1] or asked.get("is_causal") is False:
        reason = ", ".join(unserved) or "values of another width than keys, or attention that is not causal"
        raise UsageError(f"attention over rows that share beginnings cannot have {reason}; pad the rows instead")
    assert query.shape[0] == 1 and query.shape[2] == key.shape[2] == plan.layout.size, "a plan is for its own tokens"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out: Tensor = _Planned.apply(query, key, value, plan, scale)  # type: ignore[no-untyped-call]
    return out, None


AttentionInterface.register(NAME, planned_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)  # Of the passes without a plan.


class _Planned(torch.autograd.Function):
    """Takes [1, heads, tokens, width] and returns [1, tokens, heads, width], as models expect it."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float) -> Tensor:
        kernel = kernel_for(query.device, query.dtype, query.shape[-1])
        # Merged in a long type: a short one would round once a depth.
        long = torch.promote_types(query.dtype, torch.float32)
        merged = query.new_empty([query.shape[i] for i in (0, 2, 1, 3)], dtype=long).transpose(1, 2)
        lse = query.new_empty(query.shape[:3], dtype=long)
        for call in kernel.calls(plan):
            at = call.queries
            out, own = kernel.forward(query[:, :, at], key[:, :, call.keys], value[:, :, call.keys], call, scale)
            if call.causal:  # These come first, and each token is a query of one of them.
                merged[:, :, at], lse[:, :, at] = out.to(long), own.to(long)
                continue
            before = lse[:, :, at]
            after = torch.logaddexp(before, own)
            kept, added = ((each - after).exp()[..., None] for each in (before, own))
            merged[:, :, at] = merged[:, :, at] * kept + out * added
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
            found = ctx.kernel.backward(
                by_out[:, :, at],
                query[:, :, at],
                key[:, :, keys],
                value[:, :, keys],
                merged[:, :, at],
                lse[:, :, at],
                call,
                ctx.scale,
            )
            for total, places, part in zip((by_query, by_key, by_value), (at, keys, keys), found, strict=True):
                if call.causal:
                    total[:, :, places] = part
                else:
                    total[:, :, places] += part
        return by_query, by_key, by_value, None, None


def _cpu_forward(query: Tensor, key: Tensor, value: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, call.causal, scale=scale
    )
    return found


def _cpu_backward(
    by_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, call: Call, scale: float
) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        by_out, query, key, value, out, lse, 0.0, call.causal, scale=scale
    )
    return found


def _flash_forward(query: Tensor, key: Tensor, value: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
    assert call.lengths is not None
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        *_flat(query, key, value), *call.lengths, 0.0, call.causal, False, scale=scale
    )
    return out.transpose(0, 1)[None], lse[None]


def _flash_backward(
    by_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, call: Call, scale: float
) -> tuple[Tensor, ...]:
    assert call.lengths is not None
    noise = torch.zeros(2, dtype=torch.uint64, device=query.device)  # There is no dropout.
    found = torch.ops.aten._flash_attention_backward(
        *_flat(by_out, query, key, value, out),
        lse[0].contiguous(),
        *call.lengths,
        0.0,
        call.causal,
        noise,
        torch.empty(0, device=query.device),
        scale=scale,
    )
    return tuple(each.transpose(0, 1)[None] for each in found)


def _flat(*given: Tensor) -> list[Tensor]:
    """[tokens, heads, width] of each, as sequences of several lengths want it."""
    return [each[0].transpose(0, 1).contiguous() for each in given]


def _efficient_forward(query: Tensor, key: Tensor, value: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
    query, key, value = (each.transpose(1, 2) for each in (query, *_repeated(query, key, value)))
    out, lse, *_ = torch.ops.aten._efficient_attention_forward(
        query, key, value, None, None, None, None, None, 0.0, int(call.causal), True, scale=scale
    )
    return out.transpose(1, 2), lse[:, :, : query.shape[1]]


def _efficient_backward(
    by_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, call: Call, scale: float
) -> tuple[Tensor, ...]:
    keys = key.shape[1]
    key, value = _repeated(query, key, value)
    size = query.shape[2]
    # The kernel's own is longer, and infinite behind the last query.
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
    """As many heads of keys as of queries."""
    return [each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in keys]


def _segments_of(plan: Plan) -> list[Call]:
    return plan.by_segment


CPU_FLASH = Kernel("flash attention on the CPU", _segments_of, _cpu_forward, _cpu_backward)
CUDA_FLASH = Kernel("flash attention", lambda plan: plan.by_depth, _flash_forward, _flash_backward)
CUDA_EFFICIENT = Kernel("memory-efficient attention", _segments_of, _efficient_forward, _efficient_backward)
