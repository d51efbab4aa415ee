"""Intervals hold what they promise, in simulation and where they can be computed; so does the test of a difference."""

from itertools import product
from math import comb

import numpy as np
import pytest

from palaestra.trainers.evaluation.intervals import (
    beta_quantile,
    beta_share,
    clopper_pearson,
    difference_interval,
    effective_count,
    mean_interval,
    sign_flip_p,
    student_quantile,
)
from palaestra.trainers.evaluation.statistics import avg_at_k, pass_at_k


def binomial(hits, count, chance):
    """Probability of exactly so many hits."""
    return comb(count, hits) * chance**hits * (1 - chance) ** (count - hits)


@pytest.mark.parametrize(("a", "b", "x"), [(1, 1, 0.3), (3, 8, 0.1), (3, 8, 0.9), (40, 2, 0.97), (150, 151, 0.5)])
def test_the_beta_share_is_a_tail_of_the_binomial(a, b, x):
    count = a + b - 1
    tail = sum(binomial(hits, count, x) for hits in range(a, count + 1))
    assert beta_share(x, a, b) == pytest.approx(tail, abs=1e-12)


@pytest.mark.parametrize(("share", "a", "b"), [*product((0.025, 0.5, 0.975), (0.3, 1.0, 7.5, 2000.0), (1.0, 30.0))])
def test_the_beta_quantile_undoes_the_share(share, a, b):
    assert beta_share(beta_quantile(share, a, b), a, b) == pytest.approx(share, abs=1e-6)


def test_a_quantile_too_small_to_tell_from_0_is_0():
    assert beta_quantile(0.5, 0.003, 1.0) == pytest.approx(0.0, abs=1e-11)  # 0.5 to the power of 333


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (10, 2.22814), (1000, 1.96234)])
def test_students_quantiles(freedom, expected):
    assert student_quantile(freedom) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("mean", "count", "low", "high"),
    [(0.9, 10, 0.55498, 0.99747), (0.0, 10, 0.0, 0.30850), (1.0, 256, 0.98569, 1.0), (0.5, 100, 0.39832, 0.60168)],
)
def test_clopper_and_pearsons_interval(mean, count, low, high):
    assert clopper_pearson(mean, count) == pytest.approx((low, high), abs=1e-5)


@pytest.mark.parametrize("mean", [1e-12, 1e-8, 1e-4, 1 - 1e-8, 1 - 1e-12, -1e-17, 1 + 1e-16])
def test_a_mean_a_hair_beside_0_or_1_is_no_fault(mean):
    low, high = clopper_pearson(mean, 1.5)
    assert 0 <= low <= high <= 1


@pytest.mark.parametrize("tasks", [1, 2, 5, 10, 31])
def test_with_one_sample_a_task_coverage_is_at_least_95_percent_at_every_mean(tasks):
    """Summed over all outcomes, so without chance."""
    intervals = [mean_interval([1.0] * hits + [0.0] * (tasks - hits)) for hits in range(tasks + 1)]
    for chance in np.linspace(0.001, 0.999, 333):
        covered = sum(
            binomial(hits, tasks, chance) for hits, (low, high) in enumerate(intervals) if low <= chance <= high
        )
        assert covered >= 0.95 - 1e-9, chance


def samples(rng, tasks, count, mean, weight):
    """A matrix of sampled successes; how difficult a task is varies the more, the smaller the weight."""
    difficulty = rng.beta(mean * weight, (1 - mean) * weight, tasks)
    return (rng.random((tasks, count)) < difficulty[:, None]).astype(float)


@pytest.mark.parametrize(
    ("tasks", "count", "mean", "weight"),
    [
        *product((10, 30), (8,), (0.05, 0.5, 0.98), (0.5, 10)),
        *product((100,), (4,), (0.05, 0.9, 0.98), (0.1, 2)),
        (256, 8, 0.98, 0.5),
    ],
)
@pytest.mark.prove
def test_the_interval_of_avg_at_k_covers_95_percent(tasks, count, mean, weight):
    """Over 300 evaluations; 0.93 is what chance leaves of 0.95 there. The full grid: the docstring of the module."""
    rng = np.random.default_rng([tasks, count, round(100 * mean), round(10 * weight)])
    covered, width, plain = [], [], []
    for _ in range(300):
        values = avg_at_k(samples(rng, tasks, count, mean, weight))
        low, high = mean_interval(values)
        covered.append(low <= mean <= high)
        width.append(high - low)
        plain.append(np.subtract(*clopper_pearson(values.mean(), tasks)[::-1]))
    assert np.mean(covered) >= 0.93
    assert np.mean(width) <= np.mean(plain)


@pytest.mark.parametrize(("mean", "k"), [(0.05, 4), (0.5, 4), (0.9, 8)])
def test_the_interval_of_pass_at_k_covers_95_percent(mean, k):
    rng = np.random.default_rng([7, k])
    true = (1 - (1 - rng.beta(2 * mean, 2 * (1 - mean), 400_000)) ** k).mean()
    intervals = [mean_interval(pass_at_k(samples(rng, 60, 8, mean, 2), k)) for _ in range(300)]
    assert np.mean([low <= true <= high for low, high in intervals]) >= 0.93


def test_samples_narrow_the_interval_as_far_as_they_tell_something():
    rng = np.random.default_rng(3)

    def width(values):
        low, high = mean_interval(values)
        return high - low

    coins = np.repeat([0.0, 1.0], 50)  # every sample of a task like the first: eight tell what one does
    assert width(coins) == pytest.approx(np.subtract(*clopper_pearson(0.5, 100)[::-1]))
    alike = rng.binomial(8, 0.5, 100) / 8  # tasks of one difficulty: eight hundred flips
    assert 500 < effective_count(alike) < 1100
    assert width(alike) < 0.5 * width(coins)


def test_agreement_near_0_or_1_is_not_trusted():
    """Thirty tasks with one failure in 240 samples look alike; the one task in fifty that fails is not among them."""
    low, _ = mean_interval([1.0] * 29 + [0.875])
    assert low < 0.93


@pytest.mark.parametrize("values", [[], [0.5], [1.0], [0.3, 0.3, 0.3], [0.0] * 4, [1.0, 0.999999], [0.1] * 1000])
def test_an_interval_holds_its_mean_and_stays_in_0_to_1(values):
    low, high = mean_interval(values)
    assert 0 <= low <= high <= 1
    if values:
        assert low - 1e-12 <= np.mean(values) <= high + 1e-12
    else:
        assert (low, high) == (0.0, 1.0)


def two_agents(rng, tasks, count, mean, weight, gain):
    """Differences by task between two agents; the second fails `gain` less often."""
    difficulty = rng.beta(mean * weight, (1 - mean) * weight, tasks)
    better = 1 - (1 - difficulty) * (1 - gain)
    first, second = (rng.binomial(count, chance) / count for chance in (difficulty, better))
    return first - second, -(1 - mean) * gain


@pytest.mark.parametrize(
    ("tasks", "count", "mean", "gain"),
    [*product((10, 100), (1, 8), (0.5, 0.98), (0.0, 0.4)), (256, 1, 0.9, 0.4), (256, 4, 0.05, 0.0)],
)
def test_the_interval_of_a_difference_covers_95_percent(tasks, count, mean, gain):
    rng = np.random.default_rng([tasks, count, round(100 * mean), round(10 * gain)])
    covered = []
    for _ in range(600):
        differences, true = two_agents(rng, tasks, count, mean, 0.5, gain)
        low, high = difference_interval(differences)
        covered.append(low - 1e-12 <= true <= high + 1e-12)
    assert np.mean(covered) >= 0.935


def test_a_difference_that_was_never_seen_is_small_but_not_known_to_be_nothing():
    low, high = difference_interval([0.0] * 100)
    assert low == -high
    assert 0.01 < high < 0.05
    assert difference_interval([]) == (-1.0, 1.0)
    assert difference_interval([1.0] * 50)[1] == 1.0


def flipped_by_hand(differences):
    """The p-value, by trying every pattern of signs."""
    signs = np.array(list(product((-1, 1), repeat=len(differences))))
    return (np.abs(signs @ differences) >= abs(sum(differences)) - 1e-9).mean()


@pytest.mark.parametrize(
    "differences",
    [
        [1.0, 1.0, 1.0, 1.0, 1.0],
        [1.0, -1.0, 1.0, 0.0, 1.0, 1.0],
        [0.125, 0.5, -0.25, 1.0, 0.875, 0.125, -0.5],
        [1 / 3, 0.25, -2 / 7, 1 / 5, 1 / 3 - 1 / 4, 0.6],
        [-0.5, -0.5, -1.0],
        [0.001, 0.002, -0.003, 0.999],
    ],
)
def test_the_sign_flip_test_counts_every_pattern_of_signs(differences):
    assert sign_flip_p(differences) == pytest.approx(flipped_by_hand(np.array(differences)), abs=1e-12)


def test_differences_without_a_common_fraction_are_flipped_at_random():
    differences = np.random.default_rng(5).normal(0.5, 1, 12)
    found = sign_flip_p(differences)
    assert found == sign_flip_p(differences), "the same data give the same p-value"
    assert found == pytest.approx(flipped_by_hand(differences), abs=0.015)
    assert sign_flip_p(np.abs(np.random.default_rng(6).normal(1, 0.1, 200))) == 1 / 20_001


def test_very_many_tasks_take_no_exact_test():
    differences = np.random.default_rng(8).integers(-8, 9, 20_000) / 8
    assert 0 < sign_flip_p(differences) <= 1


@pytest.mark.parametrize("differences", [[], [0.0], [0.0] * 300])
def test_nothing_to_tell_apart_is_no_evidence(differences):
    assert sign_flip_p(differences) == 1.0


@pytest.mark.parametrize(("tasks", "count", "mean"), [(8, 1, 0.5), (30, 8, 0.9), (100, 4, 0.5), (256, 1, 0.98)])
def test_equal_agents_are_told_apart_in_5_percent_at_most(tasks, count, mean):
    rng = np.random.default_rng([tasks, count])
    found = [sign_flip_p(two_agents(rng, tasks, count, mean, 0.5, 0.0)[0]) for _ in range(1000)]
    assert np.mean(np.array(found) <= 0.05) <= 0.062  # 0.05 and what chance adds in 1000
    assert np.mean(np.array(found) <= 0.2) <= 0.225


def test_unequal_agents_are_told_apart():
    rng = np.random.default_rng(2)
    found = [sign_flip_p(two_agents(rng, 100, 8, 0.5, 0.5, 0.4)[0]) for _ in range(200)]
    assert np.mean(np.array(found) <= 0.05) >= 0.95
