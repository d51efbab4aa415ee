"""Compare a judge's scores with the outcomes of episodes: metrics of a step, and episodes where they contradict."""

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
"""Smallest score that counts as high, and largest score that counts as low."""
QUESTION_LETTERS = 300
"""Characters of each question that are stored, because all episodes of a run are held in memory."""


def judged_figures(rollouts: Sequence[Scored]) -> dict[str, float]:
    """Return metrics of the judge over all episodes of a batch; an empty dict if there is no judge."""
    judged_episodes = [scored for scored in rollouts if "score" in scored.remarks]
    # These have a reward and no terms: the judge gave no verdict, or a term is not a finite number.
    dropped = sum(scored.terms is None and scored.episode.reward is not None for scored in rollouts)
    if not judged_episodes:
        return {"judge/dropped": float(dropped)} if dropped else {}
    scores = np.array([scored.remarks["score"] for scored in judged_episodes], np.float64)
    outcomes = np.array(
        [scored.episode.parts.get("success", scored.episode.reward) for scored in judged_episodes], np.float64
    )
    solved = outcomes >= 0.5
    figures = {
        "judge/score": scores.mean(),
        "judge/score_of_solved": scores[solved].mean() if solved.any() else math.nan,
        "judge/score_of_failed": scores[~solved].mean() if not solved.all() else math.nan,
        "judge/correlation": correlation(scores.tolist(), outcomes.tolist()),
        "judge/clamped": sum("written" in scored.remarks for scored in judged_episodes),
        "judge/without_critique": sum(not scored.remarks.get("critique", True) for scored in judged_episodes),
        "judge/dropped": dropped,
    }
    return {name: float(value) for name, value in figures.items() if not math.isnan(value)}


def correlation(scores: NDArray[np.float64], outcomes: NDArray[np.float64]) -> float:
    """Return Pearson's correlation of scores and outcomes; NaN if all scores or all outcomes are equal."""
    if len(scores) < 2 or not np.ptp(scores) or not np.ptp(outcomes):
        return math.nan
    return float(np.corrcoef(scores, outcomes)[0, 1])


@dataclass(frozen=True, slots=True)
class LabelledEpisode:
    """The judge's score of an episode, and its outcome."""

    score: float
    """Score of the judge, from 0 to 1."""
    outcome: float
    """Success of the episode, or its reward if it has no success part."""
    question: str
    """Beginning of the question, on one line."""
    place: str
    """File of the episode, and its number in that file."""

    @property
    def solved(self) -> bool:
        """Return whether the outcome counts as a success."""
        return self.outcome >= 0.5

    @property
    def contradiction(self) -> Contradiction | None:
        """Return how score and outcome contradict each other; None if they do not."""
        if self.solved:
            return "low score, solved" if self.score <= LOW else None
        return "high score, failed" if self.score >= HIGH else None


def labelled_episode(record: Record, place: str = "") -> LabelledEpisode | None:
    """Return the score and the outcome of an episode; None if it has no score or no outcome."""
    score = next((lesson.remarks["score"] for lesson in record.lessons if "score" in lesson.remarks), None)
    reward = record.episode.reward
    if reward is None or not isinstance(score, int | float) or not math.isfinite(score):
        return None
    outcome = record.episode.parts.get("success", reward)
    question = " ".join(record.episode.attempt.task.prompt.split())[:QUESTION_LETTERS]
    return LabelledEpisode(float(score), outcome, question, place)


def disagreements(episodes: Iterable[LabelledEpisode]) -> list[LabelledEpisode]:
    """Return failed episodes with a high score and solved episodes with a low score, the largest difference first."""
    return sorted(
        (episode for episode in episodes if episode.contradiction),
        key=lambda episode: episode.score if episode.solved else 1 - episode.score,
    )
