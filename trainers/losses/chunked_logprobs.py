"""Compute log-probs and entropies of given tokens without storing logits of all tokens over the whole vocabulary.

The output layer is applied to blocks of tokens. The forward pass stores three numbers per token, and the backward pass
computes each block's logits again. Products use the layer's dtype, as in the engine; sums use float32. For a frozen
output layer no gradient is computed. Not supported: output layers that are not a plain matrix, and second derivatives.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from palaestra.agents.head import Head
from palaestra.errors import UsageError
from palaestra.trainers.losses.onednn_linear import linear_of

BLOCK = {"cpu": 256, "cuda": 1024}
"""Tokens per block, by device: few on a CPU to fit into its cache, more on a GPU to fill it."""


class Said(NamedTuple):
    """Log-probs and entropies of tokens: two tensors with one number per token."""

    logprobs: Tensor
    entropies: Tensor
    """Entropy of the distribution that the token was sampled from, in nats."""


def block_logprobs(head: Head, hidden_SD: Tensor, ids_S: Tensor, temperature: float = 1.0) -> Said:
    """Return the log-prob of each token given the hidden state before it, and the entropy at that position."""
    layer = head.layer
    if not isinstance(layer, torch.nn.Linear) or not layer.weight.is_floating_point():
        raise UsageError(
            f"the output layer is a {type(layer).__name__}, and learning needs a plain torch.nn.Linear of floats; "
            "leave it out of adapters' targets and of quantization"
        )
    with torch.autocast(hidden_SD.device.type, enabled=False):
        logprobs_and_entropies = _Blocks.apply(hidden_SD, layer.weight, layer.bias, ids_S, head, temperature)  # type: ignore[no-untyped-call]
    return Said(*logprobs_and_entropies)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_SD: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        ids_S: Tensor,
        head: Head,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.factor, ctx.cap, ctx.temperature = head.scale, head.cap, temperature
        ctx.linear = linear_of(head.layer)
        figures_S3 = hidden_SD.new_empty((len(ids_S), 3), dtype=torch.float32)
        for block in _blocks(hidden_SD):
            logits_BV = _logits(ctx, hidden_SD[block], weight_VD, bias_V)
            lse_B1 = logits_BV.logsumexp(-1, keepdim=True)
            logprobs_BV = logits_BV.sub_(lse_B1)
            figures_S3[block, 0] = logprobs_BV.gather(1, ids_S[block, None])[:, 0]
            figures_S3[block, 1] = -logprobs_BV.exp().mul_(logprobs_BV).sum(-1)
            figures_S3[block, 2] = lse_B1[:, 0]
        logprobs_S, entropies_S, lse_S = figures_S3.unbind(1)
        ctx.save_for_backward(hidden_SD, weight_VD, bias_V, ids_S, entropies_S, lse_S)
        ctx.set_materialize_grads(False)
        return logprobs_S.clone(), entropies_S.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_logprob_S: Tensor | None, by_entropy_S: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_SD, weight_VD, bias_V, ids_S, entropies_S, lse_S = ctx.saved_tensors
        if by_logprob_S is None:
            by_logprob_S = torch.zeros_like(lse_S)
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        by_hidden_SD = torch.empty_like(hidden_SD) if to_hidden else None
        by_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if to_weight else None
        by_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if to_bias else None
        for block in _blocks(hidden_SD):
            gradient_BV = _logits(ctx, hidden_SD[block], weight_VD, bias_V)
            slope_BV = None if ctx.cap is None else _slope(gradient_BV, ctx.temperature / ctx.cap)
            gradient_BV.sub_(lse_S[block, None])
            if by_entropy_S is None:
                gradient_BV.exp_().mul_(-by_logprob_S[block, None])
            else:  # p * (-g - ge * (log p + H))
                inner_BV = (gradient_BV + entropies_S[block, None]).mul_(by_entropy_S[block, None])
                gradient_BV.exp_().mul_(inner_BV.add_(by_logprob_S[block, None]).neg_())
            gradient_BV.scatter_add_(1, ids_S[block, None], by_logprob_S[block, None])
            if slope_BV is not None:
                gradient_BV.mul_(slope_BV)
            if ctx.factor != ctx.temperature:
                gradient_BV.mul_(ctx.factor / ctx.temperature)
            if by_bias_V is not None:
                by_bias_V += gradient_BV.sum(0)
            gradient_BV = gradient_BV.to(weight_VD.dtype)
            if by_hidden_SD is not None:
                by_hidden_SD[block] = ctx.linear(gradient_BV, weight_VD.T)
            if by_weight_VD is not None:
                _add_product(by_weight_VD, gradient_BV.T, hidden_SD[block])
        return (
            by_hidden_SD,
            None if by_weight_VD is None else by_weight_VD.to(weight_VD.dtype),
            None if by_bias_V is None or bias_V is None else by_bias_V.to(bias_V.dtype),
            None,
            None,
            None,
        )


def _blocks(hidden_SD: Tensor) -> list[slice]:
    size = BLOCK.get(hidden_SD.device.type, 1024)
    return [slice(begin, begin + size) for begin in range(0, len(hidden_SD), size)]


def _logits(ctx: Any, hidden_BD: Tensor, weight_VD: Tensor, bias_V: Tensor | None) -> Tensor:
    """Return the logits that `Head` computes, divided by the temperature, in place to save memory."""
    logits_BV: Tensor = ctx.linear(hidden_BD, weight_VD, bias_V).float()
    if ctx.factor != 1.0:
        logits_BV.mul_(ctx.factor)
    if ctx.cap is not None:
        logits_BV.div_(ctx.cap).tanh_().mul_(ctx.cap)
    return logits_BV if ctx.temperature == 1.0 else logits_BV.div_(ctx.temperature)


def _slope(logits_BV: Tensor, by_cap: float) -> Tensor:
    """Return the derivative of the soft cap, `1 - tanh^2`, computed from the capped logits."""
    return (logits_BV * by_cap).square_().neg_().add_(1.0)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of two matrices to `total`. Matrices in bfloat16 or float16 are multiplied in their own dtype and
    the products are summed in float32.
    """
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
