"""Importance weights for tokens that were sampled with other weights or other arithmetic.

A token's weight is `w = exp(old - sampled)`: `old` is the learner's log-prob before the update, `sampled` the engine's.
The token's loss is multiplied by the weight, which has no gradient. At level `sequence` every token of a row has the
product of the row's weights. Rejected tokens do not count in the denominator of the loss: the other tokens are weighted
as if they were the whole batch. Left out: rejection by other measures than the weight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from palaestra.errors import ConfigError
from palaestra.trainers.batch import Batch, BatchScores
from palaestra.trainers.validation import POSITIVE, check_fields

_FARTHEST = 20.0
"""Largest absolute log weight; its exp is half a billion, and larger values carry no information."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """TIS: the weight of a token is `min(w, cap)`. The authors of TIS (Yao et al. 2025) and verl use a cap of 2."""

    cap: Annotated[float, POSITIVE] = 2.0
    """Largest weight of a token."""
    correction_level: Literal["token", "sequence"] = "token"
    """Level of the weight: each token has its own, or the product over its whole row."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, log_ratio_S: NDArray[np.float64], row_S: NDArray[np.int_]) -> NDArray[np.float64]:
        """Return the factor of each token."""
        return np.minimum(_weights(log_ratio_S, row_S, self.correction_level), self.cap)


@dataclass(frozen=True, slots=True)
class Masked:
    """MIS: a token has the weight `w` if it is within the bounds; otherwise the token is rejected. The default bounds
    are those of IcePop (2025).

    At level `sequence` the product over a long row is often outside of such bounds: choose wider bounds.
    """

    lowest_weight: Annotated[float, POSITIVE] = 0.5
    """Tokens of a smaller weight are rejected."""
    highest_weight: Annotated[float, POSITIVE] = 5.0
    """Tokens of a larger weight are rejected."""
    correction_level: Literal["token", "sequence"] = "token"
    """Level of the weight: each token has its own, or the product over its whole row."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.lowest_weight <= 1 <= self.highest_weight:
            raise ConfigError(
                f"lowest_weight is {self.lowest_weight} and highest_weight {self.highest_weight}; 1 must lie between "
                "them, the weight of a token on which engine and learner agree"
            )

    def __call__(self, log_ratio_S: NDArray[np.float64], row_S: NDArray[np.int_]) -> NDArray[np.float64]:
        """Return the factor of each token; 0 if it is rejected."""
        weight_S = _weights(log_ratio_S, row_S, self.correction_level)
        return np.where((weight_S >= self.lowest_weight) & (weight_S <= self.highest_weight), weight_S, 0.0)


Correction = Callable[[NDArray[np.float64], NDArray[np.int_]], NDArray[np.float64]]
"""Function from the log ratios of an episode's tokens, and the index of their token row, to their factors."""
CORRECTIONS = {"none": type(None), "truncated": Truncated, "masked": Masked}


@dataclass(frozen=True, slots=True)
class Corrected:
    """Result of a correction: the factor of each token, and the number of tokens that are not rejected."""

    factors: Sequence[float | NDArray[np.float64]]
    """One array per sample, over its sampled tokens; or the number 1 without a correction."""
    token_counts: Sequence[int]
    """Number of tokens of each sample that are not rejected."""
    figures: dict[str, float]


def corrected(correction: Correction | None, batch: Batch, scores: BatchScores) -> Corrected:
    """Return the factors of the tokens of a batch. They are all 1 if `correction` is None."""
    if correction is None or not batch.samples:
        return Corrected([1.0] * len(batch.samples), batch.lengths, {})
    assert scores.old is not None, "a correction compares with what the learner says"
    factors, gaps = [], []
    for episode, old in zip(batch.episodes, scores.old, strict=True):
        sampled = [row.logprobs[row.sampled] for row in episode.rows]
        row_S = np.repeat(np.arange(len(sampled)), [len(row) for row in sampled])
        gaps.append(old.astype(np.float64) - np.concatenate([np.zeros(0, np.float32), *sampled]))
        factors.append(correction(gaps[-1], row_S))
    token_counts, every_S, gap_S = (
        [int((factor > 0).sum()) for factor in factors],
        np.concatenate(factors),
        np.concatenate(gaps),
    )
    figures = {
        "correction/kept_share": sum(token_counts) / len(every_S),
        # Effective sample size (Kish) as a share of all tokens.
        "correction/effective_share": float(every_S.sum() ** 2 / max(1e-300, len(every_S) * (every_S**2).sum())),
        "correction/gap_mean": float(np.abs(gap_S).mean()),
        "correction/gap_max": float(np.abs(gap_S).max()),
    }
    return Corrected(factors, token_counts, figures)


def _weights(log_ratio_S: NDArray[np.float64], row_S: NDArray[np.int_], level: str) -> NDArray[np.float64]:
    if level == "sequence":
        log_ratio_S = np.bincount(row_S, log_ratio_S).astype(np.float64)[row_S]
    return np.exp(np.clip(log_ratio_S, -_FARTHEST, _FARTHEST))
