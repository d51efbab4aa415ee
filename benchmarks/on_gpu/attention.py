"""Compare planned attention with plain attention in float64, forward and backward, at each depth of shared prefixes."""

from typing import Any

import torch

from on_gpu.shapes import Shape
from palaestra.trainers.learn.attention_kernels import kernel_for
from palaestra.trainers.learn.forward import shares_beginnings
from palaestra.trainers.learn.prefix_attention import AttentionPlan, planned_attention
from palaestra.trainers.learn.prefix_trie import Layout, lay_out

_ROWS = {
    0: ([500, 700, 300], [0, 0, 0]),
    1: ([900, 600, 800], [0, 400, 400]),
    2: ([900, 950, 700, 800], [0, 600, 300, 500]),
}
"""By depth: lengths of the sorted rows, and the number of tokens that each shares with the row before."""


def attention(shape: Shape, device: torch.device) -> dict[str, Any]:
    """Return the largest difference of outputs and gradients, divided by the largest value, for both types; and whether
    a model shares prefixes.
    """
    figures: dict[str, Any] = {}
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        figures[f"{name}_kernel"] = kernel_for(device, dtype, shape.head_dim).name
        for depth, rows in _ROWS.items():
            layout = lay_out(*rows)
            assert max(segment.depth for segment in layout.segments) == depth
            figures[f"{name}_depth_{depth}"] = _gap(shape, layout, device, dtype)
    figures["rows_share_prefixes"] = shares_beginnings(shape.build(device))
    return figures


def _gap(shape: Shape, layout: Layout, device: torch.device, dtype: torch.dtype) -> float:
    generator = torch.Generator(device).manual_seed(0)
    sizes = [(1, heads, layout.size, shape.head_dim) for heads in (shape.heads, shape.key_heads, shape.key_heads)]
    drawn = [torch.randn(size, generator=generator, device=device, dtype=dtype) for size in sizes]
    towards = torch.randn(1, layout.size, *sizes[0][1::2], generator=generator, device=device, dtype=dtype)
    found, exact = [], []
    for kept, way in ((found, dtype), (exact, torch.float64)):
        inputs = [one.to(way).requires_grad_() for one in drawn]
        if way == dtype:
            result, _ = planned_attention(None, *inputs, None, plan=AttentionPlan(layout, device))
        else:
            result = _plain(*inputs, layout)
        kept += [result.detach(), *torch.autograd.grad(result, inputs, towards.to(way))]
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in zip(found, exact, strict=True))


def _plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Compute attention by its formula: each token of a row attends to itself and to all before it in the row."""
    sees = torch.zeros(layout.size, layout.size, dtype=torch.bool)
    for places in map(torch.from_numpy, layout.places):
        sees[places[:, None], places[None]] |= torch.ones(len(places), len(places), dtype=torch.bool).tril()
    key, value = (one.repeat_interleave(query.shape[1] // one.shape[1], dim=1) for one in (key, value))
    scores = query @ key.transpose(2, 3) * query.shape[3] ** -0.5
    return (scores.masked_fill(~sees.to(query.device), -torch.inf).softmax(-1) @ value).transpose(1, 2)
