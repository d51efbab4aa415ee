"""Rows that several ranks compute together, by Ulysses: each rank computes a part of the tokens, and in attention all
tokens of a part of the heads.

DeepSpeed exchanges tokens for heads around the attention function (`UlyssesSPAttentionHF`). Ranks with neighbouring
numbers form a group, which gets the same micro-batches. Each rank of a group computes the loss of whole rows from
log-probs that it gathers, and the gradient of its own tokens; the sum over all ranks is the gradient. It works with any
sharding of the weights. Left out: critics, which need hidden states of whole rows, models whose rows are padded, and a
reference model, which computes whole rows.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from palaestra.errors import ConfigError
from palaestra.trainers.config.sections_config import ScaleConfig
from palaestra.trainers.learn.prefix_attention import planned_attention
from palaestra.trainers.scale.deepspeed_zero import imported
from palaestra.trainers.scale.ranks import Ranks

_GROUP = "palaestra_sequence_group"
"""Attribute of a model whose rows are divided."""


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The ranks that compute the same rows."""

    attention: Any
    """DeepSpeed's exchange around the attention function; it takes that function's arguments."""
    group: Any
    """Process group of these ranks."""
    ranks: Ranks
    """This rank's place among the groups: groups share the micro-batches."""
    place: int
    """This rank's place in its group."""
    size: int

    def span(self, tokens: int) -> slice:
        """Return the positions that this rank computes of a layout, whose size is divisible by the ranks."""
        part = tokens // self.size
        return slice(self.place * part, (self.place + 1) * part)

    def gathered(self, logprobs_S: Tensor, entropies_S: Tensor, own_S: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of all sampled tokens, from those of each rank's own tokens, which `own_S`
        marks. All ranks must compute the same loss from them.
        """
        both_2S = torch.stack((logprobs_S, entropies_S))
        logprobs_S, entropies_S = _Gathered.apply(both_2S, own_S, self.group)  # type: ignore[no-untyped-call]
        return logprobs_S, entropies_S


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own_2S: Tensor, own_S: Tensor, group: Any) -> Tensor:
        ctx.save_for_backward(own_S)
        all_2S = own_2S.new_zeros((2, len(own_S)))
        all_2S[:, own_S] = own_2S
        torch.distributed.all_reduce(all_2S, group=group)
        return all_2S

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_all_2S: Tensor) -> tuple[Tensor | None, ...]:
        (own_S,) = ctx.saved_tensors
        return by_all_2S[:, own_S], None, None


def sequence_group(model: Any) -> SequenceGroup | None:
    """Return the ranks that compute a row of this model together; None if each row is computed by one."""
    return model.__dict__.get(_GROUP)  # type: ignore[no-any-return]


def share_rows(model: Any, ranks: Ranks, scale: ScaleConfig) -> None:
    """Let groups of ranks compute each row of a model together, which must compute rows without padding."""
    config, size = model.config.get_text_config(), scale.sequence_parallel_size
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    if heads % size or (key_heads % size and size % key_heads):
        raise ConfigError(
            f"sequence_parallel_size is {size}, and the model has {heads} attention heads and {key_heads} key heads; "
            "choose a divisor of both"
        )
    imported().init_distributed(dist_init_required=False)
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    patience = timedelta(seconds=scale.rank_timeout)
    groups = [
        torch.distributed.new_group(list(range(first, first + size)), timeout=patience)
        for first in range(0, ranks.count, size)
    ]
    number, place = divmod(ranks.rank, size)
    attention = UlyssesSPAttentionHF(
        attn=planned_attention,
        batch_size=1,
        attn_head_count=heads,
        attn_head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        kv_head_count=key_heads,
        num_hidden_layers=config.num_hidden_layers,
        process_group=groups[number],
        seq_length_is_variable=True,
    )
    among = Ranks(number, ranks.count // size)
    model.__dict__[_GROUP] = SequenceGroup(attention, groups[number], among, place, size)
