"""Compute the log-probs of a batch's tokens under a model.

Rows are put one after another without padding, and a prefix that several rows share is computed once (`prefix_trie`,
`prefix_attention`). Tokens after the last sampled token of a row are not computed. The output layer is computed only at
the positions before sampled tokens, in blocks (`losses.chunked_logprobs`). If a model's attention does not support
this, it gets padded rows of similar length. No other module handles padding.
"""

import logging
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palaestra.agents.head import head_of
from palaestra.trainers.learn.attention_kernels import kernel_for
from palaestra.trainers.learn.packing import Packed
from palaestra.trainers.learn.prefix_attention import NAME, AttentionPlan
from palaestra.trainers.learn.prefix_trie import Layout, in_order, lay_out, parts
from palaestra.trainers.learn.sequence_parallel import sequence_group
from palaestra.trainers.losses.chunked_logprobs import block_logprobs
from palaestra.trainers.scale.fsdp import through

log = logging.getLogger("palaestra.trainers")

_BUCKET = 1.35
"""Largest ratio between the longest and the shortest row of a padded micro-batch."""
_PROBED = ((30, 4), (30, 9), (30, 9, 3), (5,))
"""Rows of the probe, each as the sizes of its segments: two depths, and one row that shares nothing."""


@dataclass(frozen=True, slots=True)
class ForwardScores:
    """Output of a model for a batch of tokens."""

    logprobs_N: Tensor
    """Log-prob of each sampled token given the tokens before it; 0 at tokens that were not sampled."""
    entropies_N: Tensor
    """Entropy of the distribution that each token was sampled from, in nats."""
    computed: int
    """Number of positions that went through the model, padding included."""
    hidden_SD: Tensor
    """Last hidden state before each sampled token, without a gradient: the input of a critic. Of rows that ranks
    compute together, only this rank's states."""


def micro_batches(model: Any, packed: Packed, max_tokens: int) -> list[Packed]:
    """Split rows into micro-batches of at most `max_tokens` tokens. A shared token counts once.

    A row that is longer than that gets its own micro-batch. Rows with a common prefix stay together if they fit.
    """
    if not shares_beginnings(model):
        return [packed.select(part) for part in _buckets(packed.lengths.tolist(), max_tokens)]
    order, lengths, commons = _sorted(_needed(packed))
    return [packed.select(order[part.start : part.stop]) for part in parts(lengths, commons, max_tokens)]


def token_logprobs(model: Any, packed: Packed, temperature: float = 1.0) -> ForwardScores:
    """Return the log-prob and the entropy of each sampled token."""
    read, head, ids_S = _flat if shares_beginnings(model) else _padded, head_of(model), packed.ids_N[packed.sampled_N]

    def work() -> tuple[tuple[Tensor, Tensor], int, Tensor, Tensor]:
        hidden_SD, computed, own_S = read(model, packed)
        logprobs_and_entropies = block_logprobs(head, hidden_SD, ids_S[own_S], temperature)
        return logprobs_and_entropies, computed, hidden_SD.detach(), own_S

    logprobs_and_entropies, computed, hidden_SD, own_S = through(model, work)
    if (together := sequence_group(model)) is not None:
        logprobs_and_entropies = together.gathered(*logprobs_and_entropies, own_S)
    nothing_N = torch.zeros_like(packed.sampled_logprobs_N)
    logprobs_N, entropies_N = (
        nothing_N.masked_scatter(packed.sampled_N, values_S) for values_S in logprobs_and_entropies
    )
    return ForwardScores(logprobs_N, entropies_N, computed, hidden_SD)


_known: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def shares_beginnings(model: Any) -> bool:
    """Return whether shared prefixes are computed only once for this model.

    On the first call a test compares the results with those of separate rows. If they are equal, the model keeps the
    attention function `prefix_attention.NAME`, which works as `sdpa` for all other callers.
    """
    if model not in _known:
        _known[model] = _tried(model)
    # If another attention function was set since then, it would read a layout as one long row.
    return _known[model] and model.config.get_text_config()._attn_implementation == NAME


def attention_of(model: Any) -> str:
    """Return in words how attention is computed when this model learns."""
    config, weight = model.config.get_text_config(), next(model.parameters())
    if not shares_beginnings(model):
        return f"{config._attn_implementation} over padded rows"
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return kernel_for(weight.device, config.dtype or weight.dtype, width).name


def assume_sharing(model: Any, of: Any) -> None:
    """Take over the result for another model of the same architecture, because a part of a model cannot be tested."""
    _known[model] = shares_beginnings(of)
    model.set_attn_implementation(of.config.get_text_config()._attn_implementation)


@torch.no_grad()
def _tried(model: Any) -> bool:
    """Return whether rows computed together, with shared prefixes, get the same hidden states as each row alone."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    kinds = set(getattr(config, "layer_types", None) or {"full_attention"})
    if before not in ("sdpa", NAME) or kinds != {"full_attention"}:
        return _padded_because(f"its attention is {', '.join(sorted(kinds))}, by {before}")
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
        states = [together[torch.from_numpy(layout.places[i]).to(weight.device)] for i in range(len(rows))]
        max_value = max(float(each.abs().max()) for each in alone)
        max_gap = max(float((state - alone[i]).abs().max()) for state, i in zip(states, order, strict=True))
        fits = max_gap <= max(1e-4, 8 * torch.finfo(weight.dtype).eps) * max_value
        reason = f"its hidden states differ by {max_gap:.1e} from those of single rows"
    except Exception as error:  # Architectures reject a keyword, a function or a head width by different errors.
        fits, reason = False, f"{type(error).__name__}: {error}"
    finally:
        for module, mode in modes:
            module.training = mode
    if fits:
        return True
    model.set_attn_implementation(before)
    return _padded_because(reason)


def _padded_because(reason: str) -> bool:
    """Warn that rows of a model are padded; return False."""
    log.warning("rows are padded and share no beginnings, so learning is slower: %s", reason)
    return False


def _flat(model: Any, packed: Packed) -> tuple[Tensor, int, Tensor]:
    """Return the hidden states before sampled tokens, the number of computed positions, without padding, and which
    sampled tokens these are: with rows that ranks compute together, those after this rank's positions.
    """
    rows, together = _needed(packed), sequence_group(model)
    order, lengths, commons = _sorted(rows)
    rows = [rows[i] for i in order]
    if together is not None and (filling := -lay_out(lengths, commons).size % together.size):
        # A row of its own makes the tokens divisible; nothing of it is used.
        rows, lengths, commons = [*rows, np.zeros(filling, rows[0].dtype)], [*lengths, filling], [*commons, 0]
    layout = lay_out(lengths, commons)
    hidden_TD = _hidden(model, rows, layout)
    places = dict(zip(order, layout.places, strict=False))
    before = [places[i][sampled[1:].nonzero()[0]] for i, sampled in enumerate(_by_row(packed, packed.sampled_N))]
    before_S = torch.from_numpy(np.concatenate(before)).to(hidden_TD.device)
    span = slice(0, layout.size) if together is None else together.span(layout.size)
    own_S = (before_S >= span.start) & (before_S < span.stop)
    return hidden_TD.index_select(0, before_S[own_S] - span.start), layout.size, own_S


def _hidden(model: Any, rows: list[NDArray[Any]], layout: Layout) -> Tensor:
    """Return the last hidden state of each token in a layout of sorted rows; with rows that ranks compute together, of
    this rank's part of it.
    """
    stretches = [(segment.row, slice(segment.place, segment.place + segment.size)) for segment in layout.segments]
    ids = np.concatenate([rows[row][stretch] for row, stretch in stretches])
    positions = np.concatenate([np.arange(stretch.start, stretch.stop) for _, stretch in stretches])
    device, exchange = model.get_input_embeddings().weight.device, {}
    if (together := sequence_group(model)) is not None:
        span, exchange = together.span(layout.size), {"exchange": together.attention}
        ids, positions = ids[span], positions[span]
    ids_1T, positions_1T = (torch.from_numpy(each).to(device)[None] for each in (ids, positions))
    output = model.base_model(
        input_ids=ids_1T,
        position_ids=positions_1T,
        # For positions that restart, the model would build a mask of tokens times tokens. It takes a mask with four
        # dimensions as it is, and the plan replaces it.
        attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device),
        plan=AttentionPlan(layout, device),
        use_cache=False,
        **exchange,
    )
    hidden_TD: Tensor = output.last_hidden_state[0]
    return hidden_TD


def _padded(model: Any, packed: Packed) -> tuple[Tensor, int, Tensor]:
    """Return what `_flat` returns, with rows padded on the right. Attention is causal, so padding changes no result."""
    lengths_R = packed.lengths
    begins_R = lengths_R.cumsum(0) - lengths_R
    places_N = torch.arange(len(packed.ids_N), device=packed.ids_N.device) - begins_R[packed.row_N]
    ids_RL = packed.ids_N.new_zeros((len(lengths_R), int(lengths_R.max())))
    ids_RL[packed.row_N, places_N] = packed.ids_N
    hidden_RLD = model.base_model(input_ids=ids_RL, use_cache=False).last_hidden_state
    hidden_SD = hidden_RLD[packed.row_N[packed.sampled_N], places_N[packed.sampled_N] - 1]
    return hidden_SD, ids_RL.numel(), torch.ones(len(hidden_SD), dtype=torch.bool, device=hidden_SD.device)


def _needed(packed: Packed) -> list[NDArray[Any]]:
    """Return the ids that each row must compute: those before its last sampled token."""
    rows, sampled = _by_row(packed, packed.ids_N), _by_row(packed, packed.sampled_N)
    return [ids[: row_sampled.nonzero()[0][-1]] for ids, row_sampled in zip(rows, sampled, strict=True)]


def _by_row(packed: Packed, values_N: Tensor) -> list[NDArray[Any]]:
    return np.split(values_N.cpu().numpy(), packed.lengths.cumsum(0)[:-1].cpu().numpy())


def _sorted(rows: list[NDArray[Any]]) -> tuple[list[int], list[int], list[int]]:
    """Return an order of the rows and, in this order, the length of each row and of its common prefix with the row
    before.
    """
    order, commons = in_order(rows)
    return order, [len(rows[i]) for i in order], commons


def _buckets(lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Group rows of similar length into parts of at most `max_tokens` padded tokens."""
    buckets: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: (lengths[row], row)):
        if (
            not buckets
            or lengths[row] > _BUCKET * lengths[buckets[-1][0]]
            or lengths[row] * (len(buckets[-1]) + 1) > max_tokens
        ):
            buckets.append([])
        buckets[-1].append(row)
    return buckets
