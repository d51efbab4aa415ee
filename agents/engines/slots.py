"""The key-value cache of the torch engine: one slot a row, all slots in one tensor a layer.

It is what a stock transformers model sees as `past_key_values`: an object with `update` and `get_seq_length`. Writes
past a row's length are harmless: the mask hides them, and the next token at that place overwrites them.
"""

from typing import Any

import torch
from torch import Tensor

_GRANULE = 16


class SlotCache:
    """Keys and values of `slots` rows. Select rows and positions with `aim`, then run the model."""

    def __init__(self, config: Any, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._shape = (slots, heads, 0, width)
        self._layers = [
            [torch.zeros(self._shape, dtype=dtype, device=device) for _ in range(2)]
            for _ in range(config.num_hidden_layers)
        ]
        self._every = torch.arange(slots, device=device)
        self._rows: Tensor | None = None
        self._positions = self._every[:, None]
        self._span = 0

    def aim(self, rows: Tensor | None, positions: Tensor, span: int) -> Tensor:
        """Choose the rows (None: all) and the positions [rows, tokens] to write; returns the attention mask.

        `span` is the longest row in sight, counted with what is written now.
        """
        self._grow(span)
        self._span = min(-(-span // _GRANULE) * _GRANULE, self._layers[0][0].shape[2])
        self._rows, self._positions = rows, positions
        keys = torch.arange(self._span, device=positions.device)
        return keys[None, None, None, :] <= positions[:, None, :, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Called by each attention layer: store what is new, return what the rows attend to."""
        rows = self._every if self._rows is None else self._rows
        seen = []
        for stored, new in zip(self._layers[layer], (keys, values), strict=True):
            stored[rows[:, None], :, self._positions] = new.transpose(1, 2)
            span = stored[:, :, : self._span]
            seen.append(span if self._rows is None else span[rows])
        return seen[0], seen[1]

    def get_seq_length(self, layer: int = 0) -> int:
        """Asked by models that are given no position ids; the engine always gives them."""
        return 0

    def _grow(self, span: int) -> None:
        have = self._layers[0][0].shape[2]
        # One place more than asked: an idle slot as long as its row writes there.
        if span < have:
            return
        room = max(-(-(span + 1) // _GRANULE) * _GRANULE, min(2 * have, have + 4096))
        for layer in self._layers:
            for index, stored in enumerate(layer):
                grown = stored.new_zeros((*stored.shape[:2], room, stored.shape[3]))
                grown[:, :, :have] = stored
                layer[index] = grown
