"""Metrics of a tasks × samples matrix, with intervals: avg@k, pass@k, pass^k, maj@k, and the comparison of two agents.

A matrix has a row of successes in [0, 1] for each task. Rows may differ in length, because broken episodes are left
out. The functions for one k return a value for every task with at least k samples; `estimate` is their mean with a 95 %
interval. The tasks are the independent unit: eight samples of one task are not eight tasks.

A pass is full success: pass@k and pass^k do not count an episode that an environment with partial grades scores 0.9.
avg@k, best@k and maj@k use the fraction.

The papers' released code (arXiv:2510.11701) computes best@n and maj@n from 1000 resamples with replacement, so its
best@32 is lower than the share of tasks solved in any of 32 samples. This module has three variants: `pass_at_k`,
`any_of_k` and `best_of_resamples`.

Not in this module: reading episodes (`evaluate`), and intervals for a fixed set of tasks where only the samples are
random.
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
from palaestra.trainers.evaluation.intervals import difference_interval, mean_interval, sign_flip_p

Samples = NDArray[np.float64]
Matrix = Sequence[Sequence[float]]
Answers = Sequence[Sequence[str | None]]
TaskT = TypeVar("TaskT", int, tuple[str, int])
"""A task by its number, or by its environment and number."""
Interval = Callable[[Sequence[float] | Samples], tuple[float, float]]

RESAMPLES = 1000
SEED = 42
"""Seed of the resamples, as in the released code."""
_FULL = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class MeanWithInterval:
    """A mean over tasks with its 95 % interval."""

    value: float
    low: float
    high: float
    tasks: int
    """Number of tasks in the mean. Without tasks the value is 0 and the interval is [0, 1]."""


def estimate(values: Sequence[float] | Samples, interval: Interval = mean_interval) -> MeanWithInterval:
    """Return the mean of one value per task, with its interval."""
    low, high = interval(values)
    return MeanWithInterval(float(np.mean(values)) if len(values) else 0.0, low, high, len(values))


def avg_at_k(matrix: Matrix) -> Samples:
    """Return the mean success of each task over all its samples."""
    return np.array([row.mean() for row in _rows(matrix, 1)])


def pass_at_k(matrix: Matrix, k: int) -> Samples:
    """Return each task's unbiased chance that at least one of k samples passes: 1 - C(n-c, k) / C(n, k)."""
    return np.array([1.0 - _all_among(int((row < _FULL).sum()), len(row), k) for row in _rows(matrix, k)])


def all_of_k(matrix: Matrix, k: int) -> Samples:
    """Return each task's unbiased chance that all of k samples pass: C(c, k) / C(n, k), the pass^k of tau-bench."""
    return np.array([_all_among(int((row >= _FULL).sum()), len(row), k) for row in _rows(matrix, k)])


def _all_among(count: int, samples: int, k: int) -> float:
    """Return the chance that k of the samples, drawn without replacement, are all among `count` of them."""
    # A product, because the binomials of a few thousand samples overflow a float.
    draws = np.arange(k)
    return float(np.prod(np.maximum(0, count - draws) / (samples - draws)))


def gap_at_k(matrix: Matrix, k: int) -> Samples:
    """Return pass@k minus avg@k of each task with at least k samples: the success gained by k tries instead of one."""
    gaps: Samples = np.subtract(pass_at_k(matrix, k), [row.mean() for row in _rows(matrix, k)])
    return gaps


def any_of_k(matrix: Matrix, k: int) -> Samples:
    """Return, per task, 1 if one of the first k samples passes, otherwise 0. With all samples, it equals pass@k."""
    return np.array([float((row[:k] >= _FULL).any()) for row in _rows(matrix, k)])


def best_of_resamples(matrix: Matrix, k: int, resamples: int = RESAMPLES, seed: int = SEED) -> Samples:
    """Return the papers' best@k of each task: the best of k samples with replacement, averaged over resamples."""
    return np.array([row[_drawn(len(row), k, resamples, seed)].max(axis=1).mean() for row in _rows(matrix, k)])


def maj_at_k(matrix: Matrix, answers: Answers, k: int, resamples: int = RESAMPLES, seed: int = SEED) -> Samples:
    """Return, for each task, the success of the most frequent answer among k samples, averaged over subsets of k
    samples.

    All subsets are used if there are at most `resamples`; otherwise that many random ones. Answers are compared as
    stripped strings. A tie counts as the mean over the tied answers. A missing or empty answer is not a vote and never
    wins; if there is no vote, the value is 0. If samples with the same answer differ in success, the answer counts as
    their mean.
    """
    return _elected(matrix, answers, k, lambda samples: _subsets(samples, k, resamples, seed))


def maj_of_resamples(matrix: Matrix, answers: Answers, k: int, resamples: int = RESAMPLES, seed: int = SEED) -> Samples:
    """Return the papers' maj@k: `maj_at_k` over resamples with replacement. (In their code the first answer wins a
    tie.)
    """
    return _elected(matrix, answers, k, lambda samples: _drawn(samples, k, resamples, seed))


def powers_of_two(samples: int) -> tuple[int, ...]:
    """Return the k that are reported: 1, 2, 4 ... below `samples`, and `samples`."""
    return (*(2**power for power in range(samples.bit_length()) if 2**power < samples), samples)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Comparison of two agents on the same tasks: the difference, and whether it may be chance."""

    tasks: int
    """Number of tasks that both agents have samples of."""
    unscored: int
    """Number of tasks where every episode of one agent broke; the other values leave them out."""
    difference: float
    """avg@k of the first agent minus that of the second."""
    low: float
    high: float
    """95 % interval of the difference."""
    p_value: float
    """P-value of the sign-flip test: the chance of a difference this large between two equal agents."""
    wins: int
    """Number of tasks where the first agent's mean success is higher."""
    ties: int
    losses: int


def compare(first: Mapping[TaskT, Sequence[float]], second: Mapping[TaskT, Sequence[float]]) -> PairedDifference:
    """Compare the successes of two agents by task. Both must have played the same tasks.

    Tasks are paired, so the order of samples and the agents' random seeds do not matter. The interval
    and the test are different methods: near p = 0.05 they may disagree.
    """
    if first.keys() != second.keys():
        raise UsageError(
            f"the agents played different tasks: {_some(first.keys() - second.keys())} the first alone, "
            f"{_some(second.keys() - first.keys())} the second alone; play both on the same tasks"
        )
    common_tasks = sorted(task for task in first if len(first[task]) and len(second[task]))
    differences = avg_at_k([first[task] for task in common_tasks]) - avg_at_k([second[task] for task in common_tasks])
    low, high = difference_interval(differences)
    wins, losses = int((differences > 1e-9).sum()), int((differences < -1e-9).sum())
    return PairedDifference(
        tasks=len(common_tasks),
        unscored=len(first) - len(common_tasks),
        difference=float(differences.mean()) if common_tasks else 0.0,
        low=low,
        high=high,
        p_value=sign_flip_p(differences),
        wins=wins,
        ties=len(common_tasks) - wins - losses,
        losses=losses,
    )


def _some(tasks: Set[TaskT]) -> str:
    examples = ", ".join(
        " ".join(map(str, task)).strip() if isinstance(task, tuple) else str(task) for task in sorted(tasks)[:5]
    )
    return f"{len(tasks)} by" if len(tasks) == 0 else f"{len(tasks)} ({examples}{', ...' if len(tasks) > 5 else ''}) by"


def _rows(matrix: Matrix, k: int) -> list[Samples]:
    """Return the rows with at least k samples, after checking their values."""
    if k < 1:
        raise UsageError(f"k is {k}; it must be at least 1")
    rows = [np.asarray(row, dtype=np.float64) for row in matrix]
    for task, row in enumerate(rows):
        # This form also rejects NaN.
        if row.ndim != 1 or not ((row >= 0) & (row <= 1)).all():
            raise UsageError(f"row {task} of the matrix is {row}; expected a sequence of successes from 0 to 1")
    return [row for row in rows if len(row) >= k]


def _elected(matrix: Matrix, answers: Answers, k: int, chosen: Callable[[int], NDArray[np.int64]]) -> Samples:
    if [len(row) for row in matrix] != [len(row) for row in answers]:
        raise UsageError("successes and answers differ in shape; expected one answer, or None, for each sample")
    _rows(matrix, k)
    values = []
    for row, task_answers in zip(matrix, answers, strict=True):
        if len(row) >= k:
            index_SK = chosen(len(row))
            ballots = _ballots(task_answers)
            values.append(float(_majority(ballots[index_SK], np.asarray(row, dtype=np.float64)[index_SK]).mean()))
    return np.array(values)


def _ballots(answers: Sequence[str | None]) -> NDArray[np.int64]:
    """Return a number for each answer, equal for equal answers; 0 means no answer."""
    numbers = {"": 0}
    return np.array([numbers.setdefault((answer or "").strip(), len(numbers)) for answer in answers], dtype=np.int64)


def _majority(ballots_SK: NDArray[np.int64], values_SK: Samples) -> Samples:
    """Return the value of the winning answer in each of S elections of K votes."""
    elections, choices = len(ballots_SK), int(ballots_SK.max()) + 1
    place = (np.arange(elections)[:, None] * choices + ballots_SK).ravel()
    votes_SC = np.bincount(place, minlength=elections * choices).reshape(elections, choices)
    total_SC = np.bincount(place, values_SK.ravel(), elections * choices).reshape(elections, choices)
    worth_SC = total_SC / np.maximum(1, votes_SC)
    votes_SC[:, 0] = 0
    wins_SC = (votes_SC == votes_SC.max(axis=1, keepdims=True)) & (votes_SC > 0)
    winner_values: Samples = (worth_SC * wins_SC).sum(axis=1) / np.maximum(1, wins_SC.sum(axis=1))
    return winner_values


@lru_cache(64)
def _drawn(samples: int, k: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Return the sample indices of each resample, drawn with replacement.

    Uses numpy's old generator, which will not change, because the papers' released code (arXiv 2510.11701) uses it: so
    best@k is the same as with that code. Tasks with equally many samples get the same draws.
    """
    return np.random.RandomState(seed).choice(samples, size=(resamples, k), replace=True)


@lru_cache(64)
def _subsets(samples: int, k: int, limit: int, seed: int) -> NDArray[np.int64]:
    """Return all subsets of k samples, or `limit` random ones if there are more."""
    if comb(samples, k) <= limit:
        return np.array(list(combinations(range(samples), k)), dtype=np.int64)
    return np.random.RandomState(seed).random_sample((limit, samples)).argsort(axis=1)[:, :k]
