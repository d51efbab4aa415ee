"""Sample words from logits, with temperature and truncation, using one random number per row.

The sampled word is the one at which the cumulative probability exceeds the row's random number. To save time, blocks of
words are summed first, and then only the block with the word is summed word by word, in float64. The log-prob is that
of the distribution that was sampled from, after temperature, truncation and normalisation.

Truncation is the same as in vLLM: first `min_p`, then `top_k`, then `top_p` of the remaining words. With temperature 0
the likeliest word is taken, with its log-prob at temperature 1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from palaestra.agents.engines.noise import uniform
from palaestra.protocols import Request

_BLOCK = 512
_ALL = 2.0
"""A top_p that keeps every word, however the sums round."""


class SamplingSettings(NamedTuple):
    """Sampling settings of all rows of a step: tensors on the engine's device with one entry per row."""

    keys_W: Tensor
    temperatures_W: Tensor
    top_p_W: Tensor
    top_k_W: Tensor
    min_p_W: Tensor

    @classmethod
    def of(cls, keys: Sequence[int], requests: Sequence[Request | None], device: torch.device) -> "SamplingSettings":
        """Return the settings of these rows. The request is None for a row whose sample is not used."""
        row_settings = [
            (1.0, 1.0, 0, 0.0) if r is None else (r.temperature, r.top_p, r.top_k, r.min_p) for r in requests
        ]
        numbers = torch.tensor(
            [(heat, _ALL if p >= 1 else p, least) for heat, p, _, least in row_settings],
            device=device,
            dtype=torch.float32,
        )
        whole = torch.tensor([keys, [k or 2**31 for *_, k, _ in row_settings]], device=device)
        return cls(whole[0], numbers[:, 0], numbers[:, 1], whole[1], numbers[:, 2])


def truncates(request: Request) -> bool:
    """Return whether the request truncates the distribution by top-p, top-k or min-p."""
    return request.temperature > 0 and (request.top_p < 1 or request.top_k > 0 or request.min_p > 0)


def sample(
    logits_WV: Tensor, positions_W: Tensor, settings: SamplingSettings, *, greedy: bool, truncated: bool
) -> tuple[Tensor, Tensor]:
    """Return the next word of each row and its log-prob.

    `greedy` must be True if any row has temperature 0, and `truncated` if any row uses top-p, top-k or min-p.
    """
    cold_W1 = (settings.temperatures_W == 0)[:, None]
    heat_W1 = settings.temperatures_W[:, None]
    logits_WV = logits_WV / (torch.where(cold_W1, 1.0, heat_W1) if greedy else heat_W1)
    if truncated:
        kept_WV = _truncate(logits_WV, settings)
        logits_WV = torch.where(cold_W1, logits_WV, kept_WV) if greedy else kept_WV
    logprobs_WV = torch.log_softmax(logits_WV, dim=-1)
    words_W1 = _draw_words(logprobs_WV, uniform(settings.keys_W, positions_W))
    if greedy:
        words_W1 = torch.where(cold_W1, logprobs_WV.argmax(dim=-1, keepdim=True), words_W1)
    return words_W1[:, 0], logprobs_WV.gather(1, words_W1)[:, 0]


def _draw_words(logprobs_WV: Tensor, uniform_W: Tensor) -> Tensor:
    """Return for each row the word at which the cumulative probability exceeds its number in (0, 1).

    A word of probability 0 is never sampled.
    """
    words = logprobs_WV.shape[1]
    whole = words // _BLOCK
    chances_WV = logprobs_WV.exp()
    sums_WN = chances_WV[:, : whole * _BLOCK].view(len(chances_WV), whole, _BLOCK).sum(-1)
    sums_WN = torch.cat([sums_WN, chances_WV[:, whole * _BLOCK :].sum(-1, keepdim=True)], dim=1)
    sums_WN = sums_WN.to(torch.float64).cumsum(-1)
    aim_W1 = uniform_W[:, None] * sums_WN[:, -1:]
    # Clamped for rows of NaN: their log-prob is NaN too, and the caller decides.
    block_W1 = torch.searchsorted(sums_WN, aim_W1, right=True).clamp_(max=whole)
    before_W1 = torch.where(block_W1 > 0, sums_WN.gather(1, (block_W1 - 1).clamp_(min=0)), 0.0)
    places_WB = block_W1 * _BLOCK + torch.arange(_BLOCK, device=chances_WV.device)
    hit_WB = chances_WV.gather(1, places_WB.clamp(max=words - 1)).to(torch.float64)
    sums_WB = torch.where(places_WB < words, hit_WB, 0.0).cumsum(-1)
    # The block was summed in float32: its end may have rounded to before the number.
    aim_W1 = torch.minimum(aim_W1 - before_W1, sums_WB[:, -1:] * (1 - 2.0**-40))
    word_W1 = block_W1 * _BLOCK + torch.searchsorted(sums_WB, aim_W1, right=True)
    return word_W1.clamp_(max=words - 1)


def _truncate(logits_WV: Tensor, settings: SamplingSettings) -> Tensor:
    """Return the logits, with minus infinity for each word that the truncation removes."""
    sorted_WV, order_WV = logits_WV.sort(dim=-1, descending=True, stable=True)
    chances_WV = torch.softmax(sorted_WV, dim=-1).to(torch.float64)
    kept_WV = chances_WV >= settings.min_p_W[:, None] * chances_WV[:, :1]
    kept_WV &= torch.arange(logits_WV.shape[1], device=logits_WV.device) < settings.top_k_W[:, None]
    chances_WV = torch.where(kept_WV, chances_WV, 0.0)
    before_WV = (chances_WV.cumsum(-1) - chances_WV) / chances_WV.sum(-1, keepdim=True)
    kept_WV &= before_WV < settings.top_p_W[:, None]
    kept_WV[:, 0] = True
    return torch.full_like(logits_WV, -torch.inf).scatter_(1, order_WV, sorted_WV.masked_fill_(~kept_WV, -torch.inf))
