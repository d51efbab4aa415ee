"""Attention over a layout in which each shared prefix is stored once (`prefix_trie`), for stock models.

Each segment attends causally to itself, and all tokens that follow a segment attend to the whole segment. Each of these
parts is one call of a fused kernel, which also returns the log-sum-exp of its scores, so that the parts can be merged
exactly. In the backward pass each kernel gets the merged output and log-sum-exp, and the gradients are added.

transformers finds this attention function by its `NAME`. Without a layout it works as `sdpa`, so other users of the
model (an engine, `generate`) are not affected. No kernel that stores the matrix of all scores is used for a layout. The
options in `UNSERVED` are refused, and values whose width differs from the width of the keys.
"""

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
from palaestra.trainers.learn.attention_kernels import AttentionCall, Kernel, kernel_for
from palaestra.trainers.learn.prefix_trie import Layout

NAME = "palaestra"
"""Name of this function among transformers' attention functions."""
UNSERVED = ("softcap", "sliding_window", "s_aux", "position_bias", "cache", "indexer_mask")
"""Keyword options of attention in some models that a layout does not support."""


@dataclass(frozen=True)
class AttentionPlan:
    """The attention calls for a layout. Every layer of the model gets the plan as a keyword argument."""

    layout: Layout
    device: torch.device

    @cached_property
    def by_segment(self) -> list[AttentionCall]:
        """Return one call per segment for its attention to itself, then one per segment for the tokens after it."""
        spans = [(slice(segment.begin, segment.begin + segment.size), segment.end) for segment in self.layout.segments]
        calls = [AttentionCall(span, span, True) for span, _ in spans]
        return calls + [AttentionCall(slice(span.stop, end), span, False) for span, end in spans if end > span.stop]

    @cached_property
    def by_depth(self) -> list[AttentionCall]:
        """Return one call for the attention of all segments to themselves, then one call per depth for the tokens after
        the segments. There are few calls, which is faster on a GPU.
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

    def calls_for(self, kernel: Kernel) -> list[AttentionCall]:
        """Return `by_depth` if the kernel supports sequences of several lengths in one call, otherwise `by_segment`."""
        return self.by_depth if kernel.variable_length else self.by_segment

    def _joined(self, ranges: list[tuple[int, int]]) -> Tensor:
        return torch.cat([torch.arange(*each, device=self.device) for each in ranges])

    def _lengths(self, queries: list[int], keys: list[int]) -> tuple[Tensor, Tensor, int, int]:
        ends = (torch.tensor([0, *accumulate(each)], dtype=torch.int32, device=self.device) for each in (queries, keys))
        return *ends, max(queries), max(keys)  # type: ignore[return-value]


def planned_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    plan: AttentionPlan | None = None,
    exchange: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers calls it: over a layout if there is a `plan`, otherwise as `sdpa`.

    If a rank has a part of the layout alone, `exchange` is called instead: it exchanges tokens for heads among the
    ranks, and calls this function with the whole layout (`sequence_parallel`).
    """
    if exchange is not None:
        positions_1T = options.pop("position_ids", query.new_zeros((1, query.shape[2])))  # The exchange asks for them.
        changes = {"dropout": dropout, "scaling": scaling, "plan": plan, "position_ids": positions_1T, **options}
        return exchange(module, query, key, value, None, **changes)  # type: ignore[no-any-return]
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
    """Attention over a plan with its own backward pass.

    Inputs are [1, heads, tokens, width]; the output is [1, tokens, heads, width], as models expect.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
        kernel = kernel_for(query.device, query.dtype, query.shape[-1])
        # Merge in at least float32: a shorter type would round once per depth.
        long = torch.promote_types(query.dtype, torch.float32)
        merged = query.new_empty([query.shape[i] for i in (0, 2, 1, 3)], dtype=long).transpose(1, 2)
        lse = query.new_empty(query.shape[:3], dtype=long)
        for call in plan.calls_for(kernel):
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
        for call in ctx.plan.calls_for(ctx.kernel):
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
