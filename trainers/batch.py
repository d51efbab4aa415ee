"""Episodes as flat tensors. Here, and nowhere else, it is decided which tokens are trained on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palaestra.episode import Episode, TokenRow


@dataclass(frozen=True, slots=True)
class Batch:
    """All tokens of some rows, one after the other, without padding: N tokens in all."""

    ids_N: Tensor
    sampled_N: Tensor
    """True where the agent chose the token: these are trained on, no others."""
    sampled_logprobs_N: Tensor
    versions_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    """How much a sampled token counts in the loss (`losses.aggregation`); 0 for the others."""
    row_N: Tensor
    """Which row, counted from 0 without gaps, in order."""
    episode_N: Tensor
    """Which of the packed episodes."""
    origin_N: Tensor
    """Where the token stood in the batch that was packed, of which this may be a part."""

    @property
    def lengths(self) -> Tensor:
        """Length of each row, shape [R]."""
        return torch.bincount(self.row_N)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(*(getattr(self, name).to(device) for name in self.__slots__))

    def select(self, rows: Sequence[int]) -> "Batch":
        """Some of the rows, as a batch of their own."""
        chosen = torch.tensor(sorted(rows), device=self.row_N.device)
        kept = torch.isin(self.row_N, chosen)
        parts = {name: getattr(self, name)[kept] for name in self.__slots__}
        parts["row_N"] = torch.searchsorted(chosen, parts["row_N"])
        return Batch(**parts)


def pack(episodes: Sequence[Episode], advantages: Sequence[float], weights: Sequence[float] | None = None) -> Batch:
    """Lay episodes out flat; an advantage and a weight go to every token their episode sampled.

    Rows in which nothing was sampled teach nothing and are left out. Without weights every sampled token counts the
    same.
    """
    weights = weights or _equal(sum(episode.sampled_tokens for episode in episodes), len(episodes))
    rows, values, shares, owners = [], [], [], []
    for index, (episode, advantage, weight) in enumerate(zip(episodes, advantages, weights, strict=True)):
        for row in episode.rows:
            if row.sampled.any():
                rows.append(row)
                values.append(advantage)
                shares.append(weight)
                owners.append(index)
    return pack_rows(rows, values, shares, owners)


def pack_rows(
    rows: Sequence[TokenRow],
    advantages: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    episodes: Sequence[int] | None = None,
) -> Batch:
    """Lay rows out flat. Without advantages each is to be imitated, without weights every sampled token counts the
    same, without episodes each row is its own.
    """
    if not rows:
        raise ValueError("a batch needs at least one row with a sampled token")
    lengths = torch.tensor([len(row) for row in rows])
    sampled_N = _joined([row.sampled for row in rows])

    def spread(values: Iterable[float]) -> Tensor:
        return torch.repeat_interleave(torch.tensor(list(values)), lengths)

    return Batch(
        ids_N=_joined([row.ids for row in rows]).long(),
        sampled_N=sampled_N,
        sampled_logprobs_N=_joined([row.logprobs for row in rows]),
        versions_N=_joined([row.versions for row in rows]),
        advantages_N=spread(advantages or [1.0] * len(rows)).float() * sampled_N,
        weights_N=spread(weights or _equal(int(sampled_N.sum()), len(rows))).float() * sampled_N,
        row_N=spread(range(len(rows))),
        episode_N=spread(episodes or range(len(rows))),
        origin_N=torch.arange(int(lengths.sum())),
    )


def _equal(tokens: int, count: int) -> list[float]:
    """The weight of each of `tokens` tokens that count the same, for each of `count` rows or episodes."""
    return [1 / max(1, tokens)] * count


def _joined(parts: Sequence[NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
