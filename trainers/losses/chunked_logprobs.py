"""Compute log-probs and entropies of given tokens without storing logits of all tokens over the whole vocabulary.

The output layer is applied to blocks of tokens. The forward pass stores three numbers per token, and the backward pass
computes each block's logits again. Products use the layer's dtype, as in the engine; sums use float32. For a frozen
output layer no gradient is computed. Not supported: output layers that are not a plain matrix, and second derivatives.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from palaestra.agents.head import Head
from palaestra.errors import UsageError
from palaestra.trainers.losses.onednn_linear import gradient_owner, gradient_sum, linear_of

BLOCK = {"cpu": 256, "cuda": 1024}
"""Tokens per block, by device: few on a CPU to fit into its cache, more on a GPU to fill it."""
WORDS = 4096
"""Words of the vocabulary per block on a CPU, for the same reason. A GPU computes all words at once."""


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
        ctx.linear, ctx.owner = linear_of(head.layer), gradient_owner(head.layer)
        figures_S3 = hidden_SD.new_zeros((len(ids_S), 3), dtype=torch.float32)
        for block in _blocks(hidden_SD):
            logits_B, entropies_B, lse_B = figures_S3[block].unbind(1)
            for words in _words(weight_VD):
                logits_BW = _logits(ctx, hidden_SD[block], weight_VD, bias_V, words)
                inside_B, columns_B = _inside(ids_S[block], words)
                logits_B.copy_(logits_BW.gather(1, columns_B[:, None])[:, 0].where(inside_B, logits_B))
                part_B1 = logits_BW.logsumexp(-1, keepdim=True)
                logprobs_BW = logits_BW.sub_(part_B1)
                part_B, entropy_B = part_B1[:, 0], -logprobs_BW.exp().mul_(logprobs_BW).sum(-1)
                if words.start:  # The entropy of a mixture of two parts of the vocabulary.
                    total_B = torch.logaddexp(lse_B, part_B)
                    old_B, new_B = lse_B - total_B, part_B - total_B
                    entropy_B = old_B.exp() * (entropies_B - old_B) + new_B.exp() * (entropy_B - new_B)
                    part_B = total_B
                entropies_B.copy_(entropy_B)
                lse_B.copy_(part_B)
                del logits_BW, logprobs_BW  # Otherwise they are held while the next words are computed.
            logits_B.sub_(lse_B)
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
        by_hidden_SD = torch.zeros_like(hidden_SD) if to_hidden else None
        by_weight_VD = None
        if to_weight:
            zeros = ctx.owner is None
            by_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if zeros else gradient_sum(ctx.owner)
        by_bias_V = torch.zeros_like(bias_V, dtype=torch.float32) if to_bias else None
        for block in _blocks(hidden_SD):
            for words in _words(weight_VD):
                gradient_BW = _logits(ctx, hidden_SD[block], weight_VD, bias_V, words)
                slope_BW = None if ctx.cap is None else _slope(gradient_BW, ctx.temperature / ctx.cap)
                gradient_BW.sub_(lse_S[block, None])
                if by_entropy_S is None:
                    gradient_BW.exp_().mul_(-by_logprob_S[block, None])
                else:  # p * (-g - ge * (log p + H))
                    inner_BW = (gradient_BW + entropies_S[block, None]).mul_(by_entropy_S[block, None])
                    gradient_BW.exp_().mul_(inner_BW.add_(by_logprob_S[block, None]).neg_())
                inside_B, columns_B = _inside(ids_S[block], words)
                gradient_BW.scatter_add_(1, columns_B[:, None], (by_logprob_S[block] * inside_B)[:, None])
                if slope_BW is not None:
                    gradient_BW.mul_(slope_BW)
                if ctx.factor != ctx.temperature:
                    gradient_BW.mul_(ctx.factor / ctx.temperature)
                if by_bias_V is not None:
                    by_bias_V[words] += gradient_BW.sum(0)
                gradient_BW = gradient_BW.to(weight_VD.dtype)
                if by_hidden_SD is not None:
                    by_hidden_SD[block] += ctx.linear(gradient_BW, weight_VD[words].T)
                if by_weight_VD is not None:
                    _add_product(ctx, by_weight_VD[words], gradient_BW.T, hidden_SD[block])
                del gradient_BW
        return (
            by_hidden_SD,
            None if by_weight_VD is None or ctx.owner is not None else by_weight_VD.to(weight_VD.dtype),
            None if by_bias_V is None or bias_V is None else by_bias_V.to(bias_V.dtype),
            None,
            None,
            None,
        )


def _blocks(hidden_SD: Tensor) -> list[slice]:
    size = BLOCK.get(hidden_SD.device.type, 1024)
    return [slice(begin, begin + size) for begin in range(0, len(hidden_SD), size)]


def _words(weight_VD: Tensor) -> list[slice]:
    """Return the parts of the vocabulary that are computed one after the other."""
    count = len(weight_VD)
    size = WORDS if weight_VD.device.type == "cpu" else count
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _inside(ids_B: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """Return which tokens are in a part of the vocabulary, and their places in it; any place for the others."""
    places_B = ids_B - words.start
    size = words.stop - words.start
    return (places_B >= 0) & (places_B < size), places_B.clamp(0, size - 1)


def _logits(ctx: Any, hidden_BD: Tensor, weight_VD: Tensor, bias_V: Tensor | None, words: slice) -> Tensor:
    """Return the logits of some words as `Head` computes them, divided by the temperature, in place to save memory."""
    logits_BV: Tensor = ctx.linear(hidden_BD, weight_VD[words], None if bias_V is None else bias_V[words]).float()
    if ctx.factor != 1.0:
        logits_BV.mul_(ctx.factor)
    if ctx.cap is not None:
        logits_BV.div_(ctx.cap).tanh_().mul_(ctx.cap)
    return logits_BV if ctx.temperature == 1.0 else logits_BV.div_(ctx.temperature)


def _slope(logits_BV: Tensor, by_cap: float) -> Tensor:
    """Return the derivative of the soft cap, `1 - tanh^2`, computed from the capped logits."""
    return (logits_BV * by_cap).square_().neg_().add_(1.0)


def _add_product(ctx: Any, total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of two matrices to `total`. Matrices in bfloat16 or float16 are multiplied in their own dtype and
    the products are summed in float32.
    """
    if left.dtype == total.dtype and ctx.linear is linear:
        total.addmm_(left, right)
    else:
        total.add_(ctx.linear(left, right.T))
