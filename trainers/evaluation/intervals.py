"""95 % intervals of means over tasks, and the test of a paired difference. Only numpy is needed.

The methods were chosen by simulation, with 10, 30, 100 or 256 tasks, 1, 4 or 8 samples, means of 0.05, 0.5, 0.9 or
0.98, and task difficulties from beta distributions of weight 0.1 to 10 (`tests/trainers/test_intervals.py` runs a part
of the simulation):

    95 % interval of a mean                                    coverage, least and mean    width at 256 × 8
    Student's t of the task means                                       0.19   0.84
    Wilson, effective number of tasks                                   0.88   0.95
    Clopper-Pearson, effective number of tasks                          0.90   0.97
    the same, number not trusted near 0 and 1: `mean_interval`          0.949  0.975        0.75 of Wilson's
    Wilson, each task one flip of a coin                                0.92   0.98         1

For pass@k with k from 2 to 8 in place of means, the coverage of Wilson's intervals falls to 0.84, and that of
`mean_interval` stays above 0.94. For paired differences, the lowest coverage of Student's t is 0.10, if few tasks
differ, and that of `difference_interval` is 0.937.

Left out: other levels than 95 %.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, lgamma, log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_TAIL = 0.025
_FLIPS = 20_000
"""Number of random flips if the exact test would take too long: the smallest p-value is then 1 in 20 001."""
_FINEST = 1000
"""Largest n for which differences that are multiples of 1/n are recognized."""
_WORK = 300_000_000
"""Largest number of steps of the exact test: less than a second."""


def mean_interval(values: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Return the interval of the mean of one value in [0, 1] per task: Clopper-Pearson with the effective number of
    tasks.

    With one sample per task, this is the exact binomial interval. Means of several samples vary less between tasks than
    single samples do, so they count as more tasks (Korn and Graubard 1998). This gain is reduced if the mean is close
    to 0 or 1, because then a few tasks decide the mean.
    """
    if not len(values):
        return 0.0, 1.0
    return clopper_pearson(float(np.mean(values)), effective_count(values))


def effective_count(values: Sequence[float] | FloatArray) -> float:
    """Return how many samples of 0 or 1 would determine the mean as precisely as these values in [0, 1]. It is at least
    the number of values.
    """
    count, mean = len(values), float(np.mean(values))
    worst = mean * (1.0 - mean)
    if count < 2 or worst <= 1e-12:
        return float(count)
    spread = min(1.0, float(np.var(values, ddof=1)) / worst)
    # It is 1 at a mean of 0 or 1, where the spread is unknown, and almost 0 for many values around a half.
    doubt = 1.0 / (1.0 + 4.0 * count * worst)
    return count / ((1.0 - doubt) * spread + doubt)


def clopper_pearson(mean: float, count: float) -> tuple[float, float]:
    """Return the exact binomial interval for this mean of `count` trials; `count` may be fractional."""
    hits = min(max(float(mean), 0.0), 1.0) * float(count)
    misses = float(count) - hits
    low = beta_quantile(_TAIL, hits, misses + 1.0) if hits > 1e-9 else 0.0
    high = beta_quantile(1.0 - _TAIL, hits + 1.0, misses) if misses > 1e-9 else 1.0
    return low, high


def difference_interval(differences: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Return the interval of the mean of paired differences in [-1, 1], one per task.

    Two imaginary tasks, one won and one lost completely, are added before Student's t is used (Bonett and Price 2012):
    if all pairs agree, the interval is narrow but not a point.
    """
    if not len(differences):
        return -1.0, 1.0
    eked = np.concatenate([np.asarray(differences, dtype=np.float64), [-1.0, 1.0]])
    half = student_quantile(len(eked) - 1) * float(eked.std(ddof=1)) / sqrt(len(eked))
    centre = float(eked.mean())
    return max(-1.0, centre - half), min(1.0, centre + half)


def student_interval(values: Sequence[float] | FloatArray) -> tuple[float, float] | None:
    """Return Student's interval of the mean of a few numbers of any size, one per seed; None for fewer than two."""
    if len(values) < 2:
        return None
    centre = float(np.mean(values))
    half = student_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / sqrt(len(values))
    return centre - half, centre + half


def sign_flip_p(differences: Sequence[float] | FloatArray) -> float:
    """Return the two-sided p-value: the share of random signs with a mean at least as far from 0 as observed.

    If both agents are equal, each task's difference is as likely as its opposite. All sign patterns are counted if the
    differences are multiples of one fraction, as they are with equal numbers of samples; otherwise, or if that would
    take too long, 20 000 random patterns are used.
    """
    values = np.asarray(differences, dtype=np.float64)
    sizes = np.abs(values[np.abs(values) > 1e-9])
    if not len(sizes):
        return 1.0
    parts = np.arange(1, _FINEST + 1)[:, None]
    scaled = parts * np.unique(sizes.round(12))
    fits = (np.abs(scaled - scaled.round()) < 1e-6).all(axis=1)
    if fits.any():
        finest = int(parts[fits.argmax(), 0])
        units = (sizes * finest).round().astype(np.int64)
        if len(units) * int(units.sum()) <= _WORK:
            return _exact_flips(units, abs(round(float(values.sum()) * finest)))
    return _random_flips(sizes, abs(float(values.sum())), np.random.default_rng(0))


def _exact_flips(units: NDArray[np.int64], observed: int) -> float:
    total = int(units.sum())
    chance = np.zeros(total + 1)  # probability of each sum of the units with a positive sign
    chance[0] = 1.0
    for unit in units:
        chance *= 0.5
        chance[unit:] += chance[: total + 1 - unit].copy()
    far = np.abs(2 * np.arange(total + 1) - total) >= observed
    return min(1.0, float(chance[far].sum()))


def _random_flips(sizes: FloatArray, observed: float, rng: np.random.Generator) -> float:
    reached, left, total = 0, _FLIPS, float(sizes.sum())
    while left:
        rows = min(left, max(1, 2_000_000 // len(sizes)))  # 16 megabytes at once
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-rows * len(sizes) // 8)), np.uint8), count=rows * len(sizes))
        sums = 2.0 * (bits.reshape(rows, -1).astype(np.float64) @ sizes) - total
        reached, left = reached + int((np.abs(sums) >= observed - 1e-9).sum()), left - rows
    # The data count as one of the patterns, so no p-value is 0.
    return (reached + 1) / (_FLIPS + 1)


@lru_cache(1024)
def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    share = beta_quantile(2 * _TAIL, freedom / 2, 0.5)
    return sqrt(freedom * (1.0 - share) / share)


@lru_cache(4096)
def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the `share` quantile of the beta distribution of a and b, within 1e-11."""
    scale = lgamma(a + b) - lgamma(a) - lgamma(b)
    low, high, x = 0.0, 1.0, a / (a + b)
    # Callers ask for the tails, so a start two standard deviations out saves half of the steps.
    guess = x + (2.0 if share > 0.5 else -2.0) * sqrt(x * (1.0 - x) / (a + b + 1.0))
    x = guess if 0.0 < guess < 1.0 else x
    for _ in range(200):
        excess = beta_share(x, a, b) - share
        low, high = (low, x) if excess > 0 else (x, high)
        density = exp(scale + (a - 1.0) * log(x) + (b - 1.0) * log1p(-x))
        step = excess / density if density > 1e-200 else 2.0
        # Take Newton's step if it stays between the bounds, otherwise bisect.
        following = x - step if low < x - step < high else (low + high) / 2
        if abs(following - x) < 1e-12:
            break
        x = following
    return x


def beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its series of positive terms (DLMF 8.17.8)."""
    if not 0.0 < x < 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # the other tail converges faster
        return 1.0 - beta_share(1.0 - x, b, a)
    term = exp(a * log(x) + b * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b)) / a
    total, number = term, 0
    while term > total * 1e-17:
        term *= x * (a + b + number) / (a + 1.0 + number)
        total += term
        number += 1
    return total
