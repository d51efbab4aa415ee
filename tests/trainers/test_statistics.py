"""avg@k, pass@k and maj@k against worked numbers, brute force and the definition of the papers' bootstrap."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra import UsageError
from palaestra.trainers.evaluation import statistics
from palaestra.trainers.evaluation.statistics import (
    all_of_k,
    any_of_k,
    avg_at_k,
    best_of_resamples,
    compare,
    estimate,
    maj_at_k,
    maj_of_resamples,
    pass_at_k,
    powers_of_two,
)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_and_pass_to_the_k_are_the_means_over_all_subsets_of_k_samples(passed, data):
    k = data.draw(st.integers(1, len(passed)))
    row = [float(one) for one in passed]
    for estimator, passes in ((pass_at_k, max), (all_of_k, min)):
        by_hand = np.mean([passes(chosen) for chosen in combinations(row, k)])
        assert estimator([row], k)[0] == pytest.approx(by_hand, abs=1e-12)


def test_pass_at_k_is_stable_for_many_samples():
    row = [1.0] * 3 + [0.0] * 9997
    # k = 1: c/n. k = n: certain. In between, nearly independent draws.
    assert pass_at_k([row], 1)[0] == pytest.approx(3e-4)
    assert pass_at_k([row], 10_000)[0] == 1.0
    assert pass_at_k([row], 5000)[0] == pytest.approx(1 - 0.5**3, abs=1e-4)


def test_only_full_success_is_a_pass():
    assert pass_at_k([[0.99, 0.99]], 2)[0] == all_of_k([[0.99, 1.0]], 2)[0] == 0.0
    assert any_of_k([[0.1 + 0.2 + 0.7, 0.0]], 2)[0] == 1.0, "but rounding is no failure"
    assert pass_at_k([[np.nextafter(1.0, 0.0), 0.0]], 2)[0] == 1.0


def test_the_papers_best_lies_below_the_share_that_was_ever_solved():
    row = [1.0] + [0.0] * 31
    found = best_of_resamples([row], 32)[0]
    assert found == pytest.approx(1 - (31 / 32) ** 32, abs=0.04)
    assert found < any_of_k([row], 32)[0] == 1.0
    assert best_of_resamples([row, row], 32).tolist() == [found, found], "every task has the same draws"
    assert best_of_resamples([row], 32, seed=1)[0] != found


def test_the_papers_majority_converges_to_the_vote_of_draws_with_replacement():
    """Right twice of three: of three draws, right where it comes up at least twice; no other answer can tie."""
    row, answers = [1.0, 1.0, 0.0], ["a", "a", "b"]
    expected = (2 / 3) ** 3 + 3 * (2 / 3) ** 2 * (1 / 3)
    assert maj_of_resamples([row], [answers], 3)[0] == pytest.approx(expected, abs=0.04)
    assert maj_of_resamples([row], [answers], 3, resamples=100_000)[0] == pytest.approx(expected, abs=0.005)


def elected_by_hand(row, answers):
    """The value of the winning answer of one vote."""
    votes = {}
    for value, answer in zip(row, answers, strict=True):
        if answer is not None and answer.strip():
            votes.setdefault(answer.strip(), []).append(value)
    most = max(map(len, votes.values()), default=0)
    winners = [np.mean(values) for values in votes.values() if len(values) == most]
    return float(np.mean(winners)) if winners else 0.0


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["a", "b", " a ", "", "c", None])), min_size=1)
    .filter(lambda rows: len(rows) <= 8)
    .flatmap(lambda rows: st.tuples(st.just(rows), st.integers(1, len(rows))))
)
def test_maj_at_k_is_the_mean_over_the_votes_of_all_subsets(drawn):
    rows, k = drawn
    row, answers = [value for value, _ in rows], [answer for _, answer in rows]
    votes = [
        elected_by_hand([row[i] for i in chosen], [answers[i] for i in chosen])
        for chosen in combinations(range(len(row)), k)
    ]
    assert maj_at_k([row], [answers], k)[0] == pytest.approx(np.mean(votes), abs=1e-12)


def test_where_there_are_too_many_subsets_some_are_drawn():
    rng = np.random.default_rng(1)
    row = (rng.random(24) < 0.6).astype(float).tolist()
    answers = ["right" if value else f"wrong {i % 3}" for i, value in enumerate(row)]
    exact = maj_at_k([row], [answers], 4, resamples=20_000)[0]  # C(24, 4) = 10 626
    assert maj_at_k([row], [answers], 4)[0] == pytest.approx(exact, abs=0.04)
    assert maj_at_k([row], [answers], 4)[0] != exact
    assert maj_at_k([row], [answers], 4)[0] == maj_at_k([row], [answers], 4)[0]


def test_no_answer_never_wins():
    assert maj_at_k([[0.0, 0.0, 0.0, 1.0]], [[None, "", " \n", "a"]], 4)[0] == 1.0
    assert maj_at_k([[1.0, 1.0]], [[None, None]], 2)[0] == 0.0


def test_the_order_of_samples_decides_no_vote():
    row, answers = [1.0, 0.0, 1.0, 0.0], ["a", "b", "a", "b"]
    assert maj_at_k([row], [answers], 4)[0] == maj_at_k([row[::-1]], [answers[::-1]], 4)[0] == 0.5


def test_a_figure_without_tasks_says_so():
    assert estimate(pass_at_k([[1.0]], 2)) == statistics.MeanWithInterval(0.0, 0.0, 1.0, 0)
    assert len(avg_at_k([[], []])) == 0
    assert len(maj_at_k([], [], 1)) == 0


@pytest.mark.parametrize(
    ("samples", "shown"),
    [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (32, (1, 2, 4, 8, 16, 32)), (33, (*(1, 2, 4), 8, 16, 32, 33))],
)
def test_figures_are_shown_for_powers_of_two_and_for_all_samples(samples, shown):
    assert powers_of_two(samples) == shown


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: pass_at_k([[1.0]], 0), "k is 0"),
        (lambda: pass_at_k([[1.0, 1.5]], 1), "row 0"),
        (lambda: avg_at_k([[1.0], [float("nan")]]), "row 1"),
        (lambda: avg_at_k([[[1.0]]]), "row 0"),
        (lambda: maj_at_k([[1.0, 0.0]], [["a"]], 1), "differ in shape"),
        (lambda: maj_at_k([[1.0]], [["a"]], 0), "k is 0"),
        (lambda: best_of_resamples([[-1.0]], 1), "row 0"),
    ],
)
def test_what_is_no_matrix_of_successes_is_refused(call, said):
    with pytest.raises(UsageError, match=said):
        call()


def test_two_agents_are_compared_by_task():
    first = {0: [1.0, 1.0], 1: [1.0, 0.0], 2: [0.5, 0.5], 3: [1.0], 4: []}
    second = {4: [1.0], 3: [0.0, 0.0], 2: [1.0, 0.0], 1: [1.0, 1.0], 0: [0.0, 1.0]}
    found = compare(first, second)
    assert (found.tasks, found.unscored) == (4, 1)
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert found.difference == pytest.approx((0.5 - 0.5 + 0.0 + 1.0) / 4)
    # Of the eight patterns of signs of 0.5, 0.5 and 1, two each add up to 2 and -2; 1 or more far out are six.
    assert found.p_value == pytest.approx(6 / 8)
    back = compare(second, first)
    assert (back.wins, back.losses, back.p_value) == (1, 2, found.p_value)
    assert (back.difference, back.low, back.high) == pytest.approx((-found.difference, -found.high, -found.low))


def test_agents_that_played_different_tasks_are_not_compared():
    with pytest.raises(UsageError, match=r"2 \(3, 7\) by the first alone, 0 by the second alone"):
        compare({1: [1.0], 7: [1.0], 3: [0.0]}, {1: [1.0]})
    with pytest.raises(UsageError, match=r"12 \(0, 1, 2, 3, 4, \.\.\.\) by the second alone"):
        compare({}, {task: [1.0] for task in range(12)})


def test_agents_of_which_nothing_was_scored_are_not_told_apart():
    found = compare({0: []}, {0: [1.0]})
    assert (found.tasks, found.unscored, found.difference, found.p_value) == (0, 1, 0.0, 1.0)
    assert (found.low, found.high) == (-1.0, 1.0)
