"""How a judge's scores and the outcomes of episodes agree: figures of a step, and the episodes where they do not."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from palaestra.record import Record
from palaestra.trainers.batch import Scored

Contradiction = Literal["high score, failed", "low score, solved"]
HIGH, LOW = 0.7, 0.3
"""Scores from and up to which a judge is taken at its word."""
QUESTION_LETTERS = 300
"""Of each question so many are kept: all episodes of a run are held together."""


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


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge said of an episode, and how it ended."""

    score: float
    """Between 0 and 1."""
    outcome: float
    """Its success, else its reward."""
    question: str
    """Its beginning, on one line."""
    place: str
    """The file, and the number of the episode there."""

    @property
    def solved(self) -> bool:
        """Whether it counts as a success."""
        return self.outcome >= 0.5

    @property
    def contradiction(self) -> Contradiction | None:
        """How score and outcome contradict each other; None where they do not."""
        if self.solved:
            return "low score, solved" if self.score <= LOW else None
        return "high score, failed" if self.score >= HIGH else None


def judged(record: Record, place: str = "") -> Judged | None:
    """The score of an episode beside its outcome; None where it lacks either."""
    score = next((one.remarks["score"] for one in record.lessons if "score" in one.remarks), None)
    reward = record.episode.reward
    if reward is None or not isinstance(score, int | float) or not math.isfinite(score):
        return None
    outcome = record.episode.parts.get("success", reward)
    question = " ".join(record.episode.attempt.task.prompt.split())[:QUESTION_LETTERS]
    return Judged(float(score), outcome, question, place)


def disagreements(found: Iterable[Judged]) -> list[Judged]:
    """Episodes with a high score that failed, and with a low one that are solved; the widest apart first."""
    return sorted(
        (one for one in found if one.contradiction), key=lambda one: one.score if one.solved else 1 - one.score
    )
