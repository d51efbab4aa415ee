"""Pack episodes into flat tensors. Only this module decides which tokens are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palaestra.episode import Episode, TokenRow

RowValues = float | NDArray[np.floating[Any]]
"""One number for each sampled token of an episode, or one number for all of them."""


@dataclass(frozen=True, slots=True)
class Packed:
    """All tokens of some rows, one row after the other without padding: N tokens in total."""

    ids_N: Tensor
    sampled_N: Tensor
    """True where the agent sampled the token: only these tokens are trained on."""
    sampled_logprobs_N: Tensor
    versions_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    """Weight of a sampled token in the loss (`losses.aggregation`); 0 for other tokens."""
    old_N: Tensor
    """Log-probs that the policy's ratio refers to: the engine's, or the learner's before the update."""
    reference_N: Tensor
    """Log-probs under the reference; 0 if there is no reference."""
    row_N: Tensor
    """Index of the token's row, from 0 without gaps, in order."""
    episode_N: Tensor
    """Index of the token's episode among the packed episodes."""
    origin_N: Tensor
    """Index of the token in the original `Packed`, of which this may be a part."""

    @property
    def lengths(self) -> Tensor:
        """Return the length of each row, shape [R]."""
        return torch.bincount(self.row_N)

    def to(self, device: torch.device) -> "Packed":
        """Return a copy on another device."""
        return Packed(*(getattr(self, field.name).to(device) for field in fields(self)))

    def select(self, rows: Sequence[int]) -> "Packed":
        """Return some of the rows as a new `Packed`."""
        chosen = torch.tensor(sorted(rows), device=self.row_N.device)
        mask = torch.isin(self.row_N, chosen)
        tensors = {field.name: getattr(self, field.name)[mask] for field in fields(self)}
        tensors["row_N"] = torch.searchsorted(chosen, tensors["row_N"])
        return Packed(**tensors)

    def by_episode(self, values_N: Tensor) -> list[NDArray[np.float32]]:
        """Return one array per episode, with the values of its sampled tokens. `values_N` holds a value per token."""
        values_S, owners_S = values_N[self.sampled_N].cpu(), self.episode_N[self.sampled_N].cpu()
        return [part.numpy() for part in torch.split(values_S, torch.bincount(owners_S).tolist())]


def pack(
    episodes: Sequence[Episode],
    advantages: Sequence[RowValues],
    weights: Sequence[RowValues] | None = None,
    reference: Sequence[RowValues] | None = None,
    old: Sequence[RowValues] | None = None,
) -> Packed:
    """Put the token rows of episodes one after another in flat tensors. Rows without a sampled token are left out.

    If `weights` is None, every sampled token has the same weight. If `old` is None, the policy's ratio refers to the
    engine's log-probs.
    """
    owners = [index for index, episode in enumerate(episodes) for row in episode.rows if row.sampled.any()]
    return pack_rows(
        [row for episode in episodes for row in episode.rows if row.sampled.any()],
        _by_row(advantages, episodes),
        None if weights is None else _by_row(weights, episodes),
        _by_row(reference, episodes) if reference else (),
        owners,
        _by_row(old, episodes) if old else None,
    )


def pack_rows(
    rows: Sequence[TokenRow],
    advantages: Sequence[RowValues] = (),
    weights: Sequence[RowValues] | None = None,
    reference: Sequence[RowValues] = (),
    episodes: Sequence[int] | None = None,
    old: Sequence[RowValues] | None = None,
) -> Packed:
    """Put token rows one after another in flat tensors.

    If there are no `advantages`, each row is imitated (advantage 1). If `weights` is None, every sampled token has the
    same weight. If `episodes` is None, each row is an episode.
    """
    if not rows:
        raise ValueError("there must be at least one row with a sampled token")
    sampled_N = _joined([row.sampled for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    sampled_logprobs_N = _joined([row.logprobs for row in rows])
    equal_weights = [1 / max(1, int(sampled_N.sum()))] * len(rows)
    return Packed(
        ids_N=_joined([row.ids for row in rows]).long(),
        sampled_N=sampled_N,
        sampled_logprobs_N=sampled_logprobs_N,
        versions_N=_joined([row.versions for row in rows]),
        advantages_N=_placed(rows, advantages or [1.0] * len(rows)),
        weights_N=_placed(rows, equal_weights if weights is None else weights),
        old_N=sampled_logprobs_N if old is None else _placed(rows, old),
        reference_N=_placed(rows, reference or [0.0] * len(rows)),
        row_N=torch.repeat_interleave(torch.arange(len(rows)), lengths),
        episode_N=torch.repeat_interleave(torch.tensor(list(episodes or range(len(rows)))), lengths),
        origin_N=torch.arange(int(lengths.sum())),
    )


def placed(values: Sequence[RowValues], episodes: Sequence[Episode]) -> Tensor:
    """Return a flat tensor in the order of `pack`, with the values at the sampled tokens and 0 at all others."""
    return _placed(
        [row for episode in episodes for row in episode.rows if row.sampled.any()], _by_row(values, episodes)
    )


def _by_row(values: Sequence[RowValues], episodes: Sequence[Episode]) -> list[RowValues]:
    """Split each episode's values into one array per row, for its rows with a sampled token."""
    row_values: list[RowValues] = []
    for value, episode in zip(values, episodes, strict=True):
        counts = [int(row.sampled.sum()) for row in episode.rows if row.sampled.any()]
        row_values += np.split(value, np.cumsum(counts)[:-1]) if np.ndim(value) else [value] * len(counts)
    return row_values


def _placed(rows: Sequence[TokenRow], values: Sequence[RowValues]) -> Tensor:
    """Return a flat tensor with the values at the sampled tokens and 0 at all others."""
    parts = []
    for row, value in zip(rows, values, strict=True):
        part = np.zeros(len(row), np.float32)
        part[row.sampled] = value
        parts.append(part)
    return _joined(parts)


def _joined(parts: Sequence[NDArray[Any]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
