"""Log-probs of a batch's tokens under a model.

Rows lie side by side without padding, and what several of them begin with is computed once (`shared`, `attention`).
Nothing behind the last sampled token of a row is computed, and the output layer sees only the places before sampled
tokens, by blocks (`block_logprobs`). Models whose attention cannot serve that get padded rows of similar length. Only
this file knows about padding.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palaestra.agents.head import head_of
from palaestra.trainers.attention import NAME, Plan
from palaestra.trainers.block_logprobs import block_logprobs
from palaestra.trainers.packed import Packed
from palaestra.trainers.scale.shards import through
from palaestra.trainers.shared import Layout, in_order, lay_out, parts

_BUCKET = 1.35
"""The longest padded row of a micro-batch is at most this factor longer than its shortest."""
_PROBED = ((30, 4), (30, 9), (30, 9, 3), (5,))
"""Rows of the probe, as the stretches that they are made of: two depths, and one with nothing in common."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model says of a batch."""

    logprobs_N: Tensor
    """Of each sampled token given what stands before it; 0 at tokens nobody sampled."""
    entropies_N: Tensor
    """Of the distribution that it was sampled from."""
    computed: int
    """Places that went through the model, padding among them."""
    hidden_SD: Tensor
    """The last hidden state before each sampled token, without a gradient: what a critic reads."""


def micro_batches(model: Any, packed: Packed, max_tokens: int) -> list[Packed]:
    """Split by row into parts of at most `max_tokens` tokens, shared ones counted once (a longer row stands alone).

    Rows that begin alike stay together where they fit.
    """
    if not shares_beginnings(model):
        return [packed.select(part) for part in _buckets(packed.lengths.tolist(), max_tokens)]
    order, lengths, commons = _sorted(_needed(packed))
    return [packed.select(order[part.start : part.stop]) for part in parts(lengths, commons, max_tokens)]


def token_logprobs(model: Any, packed: Packed, temperature: float = 1.0) -> Scores:
    """Log-prob and entropy of each sampled token."""
    read, head = _flat if shares_beginnings(model) else _padded, head_of(model)

    def work() -> tuple[tuple[Tensor, Tensor], int, Tensor]:
        hidden_SD, computed = read(model, packed)
        said = block_logprobs(head, hidden_SD, packed.ids_N[packed.sampled_N], temperature)
        return said, computed, hidden_SD.detach()

    said, computed, hidden_SD = through(model, work)
    nothing_N = torch.zeros_like(packed.sampled_logprobs_N)
    logprobs_N, entropies_N = (nothing_N.masked_scatter(packed.sampled_N, values_S) for values_S in said)
    return Scores(logprobs_N, entropies_N, computed, hidden_SD)


_known: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def shares_beginnings(model: Any) -> bool:
    """Whether common beginnings are computed once. Tried when a model is first seen: it must change nothing.

    A model that can is left with the attention function of that name, which is `sdpa` for everyone else.
    """
    if model not in _known:
        _known[model] = _tried(model)
    # Another attention function, set since, would read a layout as one long row.
    return _known[model] and model.config.get_text_config()._attn_implementation == NAME


@torch.no_grad()
def _tried(model: Any) -> bool:
    """Whether hidden states of rows laid out together are those of each row alone."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    kinds = set(getattr(config, "layer_types", None) or {"full_attention"})
    if before not in ("sdpa", NAME) or kinds != {"full_attention"}:
        return False
    weight = model.get_input_embeddings().weight
    rows = [
        np.concatenate([(np.arange(size) * 7 + 31 * place + size) % weight.shape[0] for place, size in enumerate(row)])
        for row in _PROBED
    ]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        alone = [
            model.base_model(input_ids=torch.tensor(row, device=weight.device)[None], use_cache=False)[0][0]
            for row in rows
        ]
        model.set_attn_implementation(NAME)
        order, lengths, commons = _sorted(rows)
        layout = lay_out(lengths, commons)
        together = _hidden(model, [rows[i] for i in order], layout)
        found = [together[torch.from_numpy(layout.places[i]).to(weight.device)] for i in range(len(rows))]
        largest = max(float(each.abs().max()) for each in alone)
        gap = max(float((mine - alone[i]).abs().max()) for mine, i in zip(found, order, strict=True))
        fits = gap <= max(1e-4, 8 * torch.finfo(weight.dtype).eps) * largest
    except Exception:  # Architectures refuse a keyword, a function or a head's width in their own ways.
        fits = False
    finally:
        for module, mode in modes:
            module.training = mode
    if not fits:
        model.set_attn_implementation(before)
    return fits


def _flat(model: Any, packed: Packed) -> tuple[Tensor, int]:
    """The hidden states before sampled tokens, from rows that lie side by side."""
    rows = _needed(packed)
    order, lengths, commons = _sorted(rows)
    layout = lay_out(lengths, commons)
    hidden_TD = _hidden(model, [rows[i] for i in order], layout)
    places = dict(zip(order, layout.places, strict=True))
    before = [places[i][mine[1:].nonzero()[0]] for i, mine in enumerate(_by_row(packed, packed.sampled_N))]
    before_S = torch.from_numpy(np.concatenate(before)).to(hidden_TD.device)
    return hidden_TD.index_select(0, before_S), layout.size


def _hidden(model: Any, rows: list[NDArray[Any]], layout: Layout) -> Tensor:
    """The last hidden state of each token of a layout of rows in order."""
    stretches = [(one.row, slice(one.place, one.place + one.size)) for one in layout.segments]
    ids = np.concatenate([rows[row][stretch] for row, stretch in stretches])
    positions = np.concatenate([np.arange(stretch.start, stretch.stop) for _, stretch in stretches])
    device = model.get_input_embeddings().weight.device
    ids_1T, positions_1T = (torch.from_numpy(each).to(device)[None] for each in (ids, positions))
    output = model.base_model(
        input_ids=ids_1T,
        position_ids=positions_1T,
        # Positions that begin anew would have it build a mask of tokens times tokens; one with four dimensions it
        # takes as it is, and the plan stands for it.
        attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device),
        plan=Plan(layout, device),
        use_cache=False,
    )
    hidden_TD: Tensor = output.last_hidden_state[0]
    return hidden_TD


def _padded(model: Any, packed: Packed) -> tuple[Tensor, int]:
    """The hidden states before sampled tokens, from rows padded on the right, which changes nothing: all is causal."""
    lengths_R = packed.lengths
    begins_R = lengths_R.cumsum(0) - lengths_R
    places_N = torch.arange(len(packed.ids_N), device=packed.ids_N.device) - begins_R[packed.row_N]
    ids_RL = packed.ids_N.new_zeros((len(lengths_R), int(lengths_R.max())))
    ids_RL[packed.row_N, places_N] = packed.ids_N
    hidden_RLD = model.base_model(input_ids=ids_RL, use_cache=False).last_hidden_state
    return hidden_RLD[packed.row_N[packed.sampled_N], places_N[packed.sampled_N] - 1], ids_RL.numel()


def _needed(packed: Packed) -> list[NDArray[Any]]:
    """The ids of each row as far as something is predicted from them: up to the last sampled token, without it."""
    rows, sampled = _by_row(packed, packed.ids_N), _by_row(packed, packed.sampled_N)
    return [ids[: mine.nonzero()[0][-1]] for ids, mine in zip(rows, sampled, strict=True)]


def _by_row(packed: Packed, values_N: Tensor) -> list[NDArray[Any]]:
    return np.split(values_N.cpu().numpy(), packed.lengths.cumsum(0)[:-1].cpu().numpy())


def _sorted(rows: list[NDArray[Any]]) -> tuple[list[int], list[int], list[int]]:
    """The rows' order, and in it their lengths and what each has in common with the one before."""
    order, commons = in_order(rows)
    return order, [len(rows[i]) for i in order], commons


def _buckets(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Rows of similar length, at most `max_tokens` padded tokens a part."""
    found: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (lengths[row], row)):
        if (
            not found
            or lengths[row] > _BUCKET * lengths[found[-1][0]]
            or lengths[row] * (len(found[-1]) + 1) > max_tokens
        ):
            found.append([])
        found[-1].append(row)
    return found
