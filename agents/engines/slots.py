"""The key-value cache of the torch engine: one place per row, and in each layer one tensor with all places.

A stock transformers model gets it as `past_key_values`: an object with `update` and `get_seq_length`. A write after the
end of a row does no harm: the mask hides it, and the next token at that position overwrites it.

All places are at least as long as the longest running row, and there are as many places as fit into `tokens`. So long
rows leave fewer places, until they have ended. Pages would waste less memory if rows differ much in length, but a stock
model's attention needs the keys of a row side by side. On a CPU, gathering them from pages at every step and in every
layer costs more than the attention itself, because all keys and values are moved twice. In a place they are read
directly.

Left out: pages, for this reason. Rows with a common prompt hold one copy each.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_GRANULE = 16
_BOUNDED_GRANULE = 64
"""Smallest granule if the cache is bounded. Long places grow by an eighth, because each growth copies everything."""


class SlotCache:
    """Cache of keys and values, for at most `slots` rows and `tokens` tokens.

    Before each run of the model, call `resize`, then `aim`.
    """

    def __init__(
        self, config: Any, slots: int, dtype: torch.dtype, device: torch.device, tokens: int | None = None
    ) -> None:
        self._slots, self._tokens = slots, tokens
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._layers = [
            [torch.zeros((slots, heads, 0, width), dtype=dtype, device=device) for _ in range(2)]
            for _ in range(config.num_hidden_layers)
        ]
        self._device = device
        self._heads = torch.arange(heads, device=device)[None, :, None]
        self._rows: slice | Tensor = slice(0, slots)
        self._where = self._heads
        self._span = 0

    def aim(self, places: Sequence[int], positions: Tensor, span: int) -> Tensor:
        """Choose the places and the positions [places, tokens] to write; return the attention mask.

        `span` is the length of the longest of these rows, including the tokens to write. If the places are consecutive
        numbers in ascending order, their keys and values are read directly; otherwise they are copied together first.
        """
        self._span = min(-(-span // _GRANULE) * _GRANULE, self.room)
        first, end = places[0], places[0] + len(places)
        side_by_side = list(places) == list(range(first, end))
        # Made on the device if possible: a GPU need not wait for the host.
        rows = torch.arange(first, end, device=self._device) if side_by_side else self._indices(places)
        self._rows = slice(first, end) if side_by_side else rows
        # No row uses the last position: padding beyond the room is written there.
        positions = positions.clamp(max=self.room - 1)
        lines = (rows[:, None, None] * self._heads.shape[1] + self._heads) * self.room + positions[:, None, :]
        self._where = lines.flatten()
        keys = torch.arange(self._span, device=self._device)
        return keys[None, None, None, :] <= positions[:, None, :, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values; return all those that the rows attend to. Each attention layer calls this."""
        visible = []
        for stored, new in zip(self._layers[layer], (keys, values), strict=True):
            width = stored.shape[3]
            stored.view(-1, width).index_copy_(0, self._where, new.reshape(-1, width))
            visible.append(stored[:, :, : self._span][self._rows])
        return visible[0], visible[1]

    def get_seq_length(self, layer: int = 0) -> int:
        """Return 0. Only models that get no position ids use this number, and the engine always passes them."""
        return 0

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of each source to its target.

        All sources are read before a target is written, so two places can exchange their content.
        """
        take, put = self._indices(sources), self._indices(targets)
        for layer in self._layers:
            for stored in layer:
                part = stored[:, :, :length]
                part[put] = part[take]

    def clear(self) -> None:
        """Set all keys and values to zero."""
        for layer in self._layers:
            for stored in layer:
                stored.zero_()

    def free(self) -> None:
        """Free the memory of all keys and values."""
        for layer in self._layers:
            for index, stored in enumerate(layer):
                layer[index] = stored.new_zeros((self._slots, stored.shape[1], 0, stored.shape[3]))

    @property
    def places(self) -> int:
        """Return the number of places: the rows that the cache can hold now."""
        return self._layers[0][0].shape[0]

    @property
    def room(self) -> int:
        """Return the number of positions in each place."""
        return self._layers[0][0].shape[2]

    @property
    def bytes(self) -> int:
        """Return the size of the cache in bytes."""
        return sum(stored.nbytes for layer in self._layers for stored in layer)

    def places_for(self, length: int) -> int:
        """Return how many rows of this length fit at once; at least one."""
        return self._slots if self._tokens is None else max(1, min(self._slots, self._tokens // self._least(length)))

    def size_for(self, length: int, rows: int) -> tuple[int, int]:
        """Return the number of places and of positions in each that `rows` rows of this length need.

        If the present size is enough, return the present size.
        """
        if length < self.room and rows <= self.places:
            return self.places, self.room
        generous = max(self._least(length), min(2 * self.room, self.room + 4096))
        if self._tokens is None or self._slots * generous <= self._tokens:
            return self._slots, generous
        return self.places_for(length), self._least(length)

    def resize(self, places: int, room: int) -> None:
        """Change the number of places and positions. Those that remain keep their content."""
        for layer in self._layers:
            for index, stored in enumerate(layer):
                changed = stored.new_zeros((places, stored.shape[1], room, stored.shape[3]))
                old_part = stored[:places, :, :room]
                changed[: old_part.shape[0], :, : old_part.shape[2]] = old_part
                layer[index] = changed

    def _least(self, length: int) -> int:
        """Return the positions that a row of this length needs, with one more, to which idle places write."""
        granule = _GRANULE if self._tokens is None else max(_BOUNDED_GRANULE, 1 << max(0, length.bit_length() - 4))
        room = -(-(length + 1) // granule) * granule
        return room if self._tokens is None else min(room, self._tokens)

    def _indices(self, places: Sequence[int]) -> Tensor:
        return torch.tensor(places, device=self._device)
