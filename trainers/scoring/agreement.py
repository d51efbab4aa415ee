"""How a judge's scores and the outcomes of episodes agree: figures of a step, and the episodes where they do not."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from palaestra.record import Record
from palaestra.trainers.batch import Scored

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
        "judge/correlation": correlation(scores, outcomes),
        "judge/clamped": sum("written" in one.remarks for one in said),
        "judge/without_critique": sum(not one.remarks["critique"] for one in said),
        "judge/dropped": dropped,
    }
    return {name: float(value) for name, value in figures.items() if not math.isnan(value)}


def correlation(scores: Sequence[float], outcomes: Sequence[float]) -> float:
    """Pearson's; not a number where either is the same everywhere."""
    if len(scores) < 2 or not np.ptp(scores) or not np.ptp(outcomes):
        return math.nan
    return float(np.corrcoef(scores, outcomes)[0, 1])


class Disagreement(NamedTuple):
    """A record whose score and outcome contradict each other."""

    kind: Literal["high score, failed", "low score, solved"]
    score: float
    record: Record


def disagreements(records: Iterable[Record], high: float = HIGH, low: float = LOW) -> list[Disagreement]:
    """Episodes with a high score that failed, and with a low one that are solved; the widest apart first."""
    found = []
    for record in records:
        score = next((one.remarks["score"] for one in record.lessons if "score" in one.remarks), None)
        if score is None or record.episode.reward is None:
            continue
        solved = record.episode.parts.get("success", record.episode.reward) >= 0.5
        if not solved and score >= high:
            found.append(Disagreement("high score, failed", score, record))
        elif solved and score <= low:
            found.append(Disagreement("low score, solved", score, record))
    return sorted(found, key=lambda one: one.score if one.kind == "low score, solved" else 1 - one.score)
