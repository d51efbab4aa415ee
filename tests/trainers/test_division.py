"""Which training tasks are demonstrated to the tiny agent, and which are kept back for its gate."""

import pytest

from palaestra import UsageError
from palaestra.trainers.setup.demonstration_split import FEWEST_TASKS, Division

COUNTS = (FEWEST_TASKS, 11, 14, 51, 60, 999, 1_000_000, 1_999_999, 2_000_000, 2**31)


@pytest.mark.parametrize("count", COUNTS)
def test_every_task_exists_and_none_is_both_demonstrated_and_kept_back(count):
    tasks, numbers = Division(count), [*range(3000), 10**9 + 7]
    demonstrated = {tasks.demonstrated(number) for number in numbers}
    kept_back = {tasks.kept_back(number) for number in numbers}
    assert demonstrated.isdisjoint(kept_back)
    assert min(demonstrated | kept_back) >= 0
    assert max(demonstrated | kept_back) < count


@pytest.mark.parametrize("count", [10, 11, 51, 60, 999])
def test_of_a_small_set_every_task_is_used_and_about_a_fifth_kept_back_from_all_of_it(count):
    tasks = Division(count)
    demonstrated = {tasks.demonstrated(number) for number in range(count)}
    kept_back = {tasks.kept_back(number) for number in range(count)}
    assert demonstrated | kept_back == set(range(count))
    assert len(kept_back) == count // 5
    assert max(kept_back) >= count - 5, "a file may be sorted from easy to hard"


def test_drawn_tasks_stay_the_ones_that_published_figures_were_measured_on():
    tasks = Division(2**31)
    assert [tasks.demonstrated(number) for number in (0, 5999, 18_000, 1_000_003)] == [0, 5999, 18_000, 3]
    assert [tasks.kept_back(number) for number in (0, 191)] == [1_000_000, 1_000_191]


@pytest.mark.parametrize("count", [1, 2, FEWEST_TASKS - 1])
def test_too_few_tasks_are_refused_with_the_number_that_it_takes(count):
    with pytest.raises(UsageError, match=rf"with {count} training tasks?: .* at least {FEWEST_TASKS}; .*--model"):
        Division(count)


def test_so_few_tasks_that_they_may_be_learned_by_heart_are_warned_of():
    assert "only 48 tasks are demonstrated" in Division(60).warning
    assert "fail the 12 others" in Division(60).warning
    assert not Division(400).warning
    assert not Division(2**31).warning
