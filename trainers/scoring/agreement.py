"""How a judge's scores and the outcomes of episodes agree: figures of a step, and the episodes where they do not."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palaestra.record import Record
from palaestra.trainers.batch import Scored

Contradiction = Literal["high score, failed", "low score, solved"]
HIGH, LOW = 0.7, 0.3
"""Scores from and up to which a judge is taken at its word."""


def judged_figures(played: Sequence[Scored]) -> dict[str, float]:
    """Of all that was played for a batch; nothing where nobody was asked."""
    said = [one for one in played if "score" in one.remarks]
    # It has a reward and no terms: its judge gave no verdict, or a term is no number.
    dropped = sum(one.terms is None and one.episode.reward is not None for one in played)
    if not said:
        return {"judge/dropped": float(dropped)} if dropped else {}
    scores = np.array([one.remarks["score"] for one in said], np.float64)
    outcomes = np.array([one.episode.parts.get("success", one.episode.reward) for one in said], np.float64)
    solved = outcomes >= 0.5
    figures = {
        "judge/score": scores.mean(),
        "judge/score_of_solved": scores[solved].mean() if solved.any() else math.nan,
        "judge/score_of_failed": scores[~solved].mean() if not solved.all() else math.nan,
        "judge/correlation": correlation(scores.tolist(), outcomes.tolist()),
        "judge/clamped": sum("written" in one.remarks for one in said),
        "judge/without_critique": sum(not one.remarks["critique"] for one in said),
        "judge/dropped": dropped,
    }
    return {name: float(value) for name, value in figures.items() if not math.isnan(value)}


def correlation(scores: NDArray[np.float64], outcomes: NDArray[np.float64]) -> float:
    """Pearson's; not a number where either is the same everywhere."""
    if len(scores) < 2 or not np.ptp(scores) or not np.ptp(outcomes):
        return math.nan
    return float(np.corrcoef(scores, outcomes)[0, 1])


def contradiction(record: Record, high: float = HIGH, low: float = LOW) -> Contradiction | None:
    """How an episode's score and its outcome contradict each other; None where they do not, or it has no score."""
    score = score_of(record)
    if score is None or record.episode.reward is None:
        return None
    if record.episode.parts.get("success", record.episode.reward) >= 0.5:
        return "low score, solved" if score <= low else None
    return "high score, failed" if score >= high else None


def score_of(record: Record) -> float | None:
    """What a judge gave an episode, between 0 and 1."""
    found = next((one.remarks["score"] for one in record.lessons if "score" in one.remarks), None)
    return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def disagreements(
    records: Iterable[Record], high: float = HIGH, low: float = LOW
) -> list[tuple[Contradiction, float, Record]]:
    """Episodes with a high score that failed, and with a low one that are solved; the widest apart first."""
    found = [(kind, score_of(one) or 0.0, one) for one in records if (kind := contradiction(one, high, low))]
    return sorted(found, key=lambda one: one[1] if one[0] == "low score, solved" else 1 - one[1])
