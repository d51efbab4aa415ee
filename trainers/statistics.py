"""Figures over a tasks × samples matrix, with intervals that hold: avg@k, pass@k, maj@k, and two agents compared.

A matrix is a row of successes in [0, 1] for each task; rows may differ in length, because episodes that broke are in
none of them. The functions for one k give a value for every task that has at least k samples; `estimate` is their mean
with a 95 % interval. The tasks are the independent unit: eight samples of one task are not eight tasks.

A pass is full success: an environment that grades partially gives 0.9 for what is not solved, and pass@k counts what is
solved. avg@k, best@k and maj@k take the fraction as it is.

The papers' released code (arXiv:2510.11701) draws its best@n and maj@n from 1000 resamples with replacement, so its
best@32 is lower than the share of tasks solved in any of 32 samples. All three ways are here, under different names.

Left out: reading episodes (`evaluate`), and intervals for a fixed set of tasks, where only the samples are drawn.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from palaestra.errors import UsageError
from palaestra.trainers.intervals import difference_interval, mean_interval, sign_flip_p

Values = NDArray[np.float64]
Matrix = Sequence[Sequence[float]]
Answers = Sequence[Sequence[str | None]]
Task = TypeVar("Task", int, tuple[str, int])
"""A task by its number, or by its environment and number."""
Interval = Callable[[Sequence[float] | Values], tuple[float, float]]

RESAMPLES = 1000
SEED = 42
"""Of the resamples: what the released code uses."""
_FULL = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its 95 % interval."""

    value: float
    low: float
    high: float
    tasks: int
    """How many tasks it is the mean of; without any, the value is 0 and the interval is all of [0, 1]."""


def estimate(values: Sequence[float] | Values, interval: Interval = mean_interval) -> Estimate:
    """The mean of one value a task, with its interval."""
    low, high = interval(values)
    return Estimate(float(np.mean(values)) if len(values) else 0.0, low, high, len(values))


def avg_at_k(matrix: Matrix) -> Values:
    """Mean success of each task, over all its samples."""
    return np.array([row.mean() for row in _rows(matrix, 1)])


def pass_at_k(matrix: Matrix, k: int) -> Values:
    """Chance of each task that at least one of k samples passes, unbiased: 1 - C(n - c, k) / C(n, k)."""
    # As a product, because the binomials of a few thousand samples exceed a float.
    found = []
    for row in _rows(matrix, k):
        samples, failed = len(row), int((row < _FULL).sum())
        left = np.arange(k)
        found.append(1.0 - float(np.prod(np.maximum(0, failed - left) / (samples - left))))
    return np.array(found)


def gap_at_k(matrix: Matrix, k: int) -> Values:
    """pass@k less avg@k of each task with at least k samples: what trying k times finds and trying once does not."""
    found: Values = np.subtract(pass_at_k(matrix, k), [row.mean() for row in _rows(matrix, k)])
    return found


def any_of_k(matrix: Matrix, k: int) -> Values:
    """Whether one of the first k samples of each task passes: plain pass@k. It equals `pass_at_k` when k is all."""
    return np.array([float((row[:k] >= _FULL).any()) for row in _rows(matrix, k)])


def best_of_resamples(matrix: Matrix, k: int, resamples: int = RESAMPLES, seed: int = SEED) -> Values:
    """The papers' best@k: the best of k samples drawn with replacement, the mean over resamples, for each task."""
    return np.array([row[_drawn(len(row), k, resamples, seed)].max(axis=1).mean() for row in _rows(matrix, k)])


def maj_at_k(matrix: Matrix, answers: Answers, k: int, resamples: int = RESAMPLES, seed: int = SEED) -> Values:
    """Success of the answer that most of k samples give, for each task: the mean over subsets of k samples.

    All subsets are counted if they are no more than `resamples`, else as many are drawn. Answers are compared as
    stripped strings. A tie is decided by lot: its value is the mean over the answers that tie. No answer, or an empty
    one, is no vote and never wins; where nobody answers, the value is 0. Where samples with the same answer differ in
    success, the answer is worth their mean.
    """
    return _elected(matrix, answers, k, lambda samples: _subsets(samples, k, resamples, seed))


def maj_of_resamples(matrix: Matrix, answers: Answers, k: int, resamples: int = RESAMPLES, seed: int = SEED) -> Values:
    """The papers' maj@k: as `maj_at_k`, over resamples with replacement. (Theirs lets the first answer win a tie.)"""
    return _elected(matrix, answers, k, lambda samples: _drawn(samples, k, resamples, seed))


def powers_of_two(samples: int) -> tuple[int, ...]:
    """The k for which figures are shown: 1, 2, 4 ... below `samples`, and `samples`."""
    return (*(2**power for power in range(samples.bit_length()) if 2**power < samples), samples)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two agents on the same tasks: how much better the first is, and whether that may be chance."""

    tasks: int
    """Tasks that both have samples of."""
    unscored: int
    """Tasks where every episode of one agent broke; in none of the other figures."""
    difference: float
    """avg@k of the first less that of the second."""
    low: float
    high: float
    """95 % interval of the difference."""
    p_value: float
    """Of the sign-flip test: how often chance would set two equal agents this far apart."""
    wins: int
    """Tasks where the first agent's mean success is higher."""
    ties: int
    losses: int


def compare(first: Mapping[Task, Sequence[float]], second: Mapping[Task, Sequence[float]]) -> Comparison:
    """Compare the successes of two agents, by task. Both must have played the same tasks.

    The pairs are tasks, so it does not matter which sample stands beside which, nor whether the agents share their
    noise. The interval and the test are different instruments: near p = 0.05 one may see what the other does not.
    """
    if first.keys() != second.keys():
        raise UsageError(
            f"the agents played different tasks: {_some(first.keys() - second.keys())} the first alone, "
            f"{_some(second.keys() - first.keys())} the second alone; play both on the same tasks"
        )
    both = sorted(task for task in first if len(first[task]) and len(second[task]))
    differences = avg_at_k([first[task] for task in both]) - avg_at_k([second[task] for task in both])
    low, high = difference_interval(differences)
    wins, losses = int((differences > 1e-9).sum()), int((differences < -1e-9).sum())
    return Comparison(
        tasks=len(both),
        unscored=len(first) - len(both),
        difference=float(differences.mean()) if both else 0.0,
        low=low,
        high=high,
        p_value=sign_flip_p(differences),
        wins=wins,
        ties=len(both) - wins - losses,
        losses=losses,
    )


def _some(tasks: Set[Task]) -> str:
    shown = ", ".join(
        " ".join(map(str, task)).strip() if isinstance(task, tuple) else str(task) for task in sorted(tasks)[:5]
    )
    return f"{len(tasks)} by" if len(tasks) == 0 else f"{len(tasks)} ({shown}{', ...' if len(tasks) > 5 else ''}) by"


def _rows(matrix: Matrix, k: int) -> list[Values]:
    """The rows with at least k samples, checked."""
    if k < 1:
        raise UsageError(f"k is {k}; it must be at least 1")
    rows = [np.asarray(row, dtype=np.float64) for row in matrix]
    for task, row in enumerate(rows):
        # Written so that a NaN is caught.
        if row.ndim != 1 or not ((row >= 0) & (row <= 1)).all():
            raise UsageError(f"row {task} of the matrix is {row}; expected a sequence of successes from 0 to 1")
    return [row for row in rows if len(row) >= k]


def _elected(matrix: Matrix, answers: Answers, k: int, chosen: Callable[[int], NDArray[np.int64]]) -> Values:
    if [len(row) for row in matrix] != [len(row) for row in answers]:
        raise UsageError("successes and answers differ in shape; expected one answer, or None, for each sample")
    _rows(matrix, k)
    found = []
    for row, said in zip(matrix, answers, strict=True):
        if len(row) >= k:
            index_SK = chosen(len(row))
            ballots = _ballots(said)
            found.append(float(_majority(ballots[index_SK], np.asarray(row, dtype=np.float64)[index_SK]).mean()))
    return np.array(found)


def _ballots(answers: Sequence[str | None]) -> NDArray[np.int64]:
    """A number for each answer, equal where the answers are; 0 is no answer."""
    numbers = {"": 0}
    return np.array([numbers.setdefault((answer or "").strip(), len(numbers)) for answer in answers], dtype=np.int64)


def _majority(ballots_SK: NDArray[np.int64], values_SK: Values) -> Values:
    """Value of the winning answer in each of S elections of K votes."""
    elections, choices = len(ballots_SK), int(ballots_SK.max()) + 1
    place = (np.arange(elections)[:, None] * choices + ballots_SK).ravel()
    votes_SC = np.bincount(place, minlength=elections * choices).reshape(elections, choices)
    total_SC = np.bincount(place, values_SK.ravel(), elections * choices).reshape(elections, choices)
    worth_SC = total_SC / np.maximum(1, votes_SC)
    votes_SC[:, 0] = 0
    wins_SC = (votes_SC == votes_SC.max(axis=1, keepdims=True)) & (votes_SC > 0)
    found: Values = (worth_SC * wins_SC).sum(axis=1) / np.maximum(1, wins_SC.sum(axis=1))
    return found


@lru_cache(64)
def _drawn(samples: int, k: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Which samples each resample holds, with replacement.

    The old generator, because its stream is frozen for ever and is the one of the released code: the same matrix gives
    the same best@k there. Every task of as many samples gets the same draws, as there.
    """
    return np.random.RandomState(seed).choice(samples, size=(resamples, k), replace=True)


@lru_cache(64)
def _subsets(samples: int, k: int, most: int, seed: int) -> NDArray[np.int64]:
    """All subsets of k samples, or `most` drawn at random."""
    if comb(samples, k) <= most:
        return np.array(list(combinations(range(samples), k)), dtype=np.int64)
    return np.random.RandomState(seed).random_sample((most, samples)).argsort(axis=1)[:, :k]
