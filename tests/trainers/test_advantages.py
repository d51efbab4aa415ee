"""Group advantages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.losses.advantages import group_advantages
from palaestra.trainers.metrics import dead_share


def test_one_success_in_four():
    np.testing.assert_allclose(group_advantages([1, 0, 0, 0], [7] * 4), [1.5, -0.5, -0.5, -0.5], atol=1e-5)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.7, -0.6, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 8, 13])
def test_equal_rewards_give_exact_zeros(reward, size):
    """0.7 times eight has a standard deviation above zero in floating point."""
    assert (group_advantages([reward] * size, [0] * size) == 0).all()


def test_groups_are_compared_within_themselves():
    mixed = group_advantages([1, 5, 0, 9, 0, 5, 0, 5], [3, 1, 3, 1, 3, 1, 3, 1])
    np.testing.assert_allclose(mixed[::2], [1.5, -0.5, -0.5, -0.5], atol=1e-5)
    np.testing.assert_allclose(mixed[1::2], [-0.5, 1.5, -0.5, -0.5], atol=1e-5)


def test_a_group_of_one_has_nothing_to_be_compared_with():
    assert group_advantages([5.0, 1.0, 0.0], [0, 1, 1])[0] == 0


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 3)), min_size=1, max_size=20),
    st.floats(-1, 1),
    st.randoms(use_true_random=False),
)
def test_order_and_a_common_offset_change_nothing(members, offset, random):
    rewards, groups = (list(part) for part in zip(*members, strict=True))
    found = group_advantages(rewards, groups)
    assert np.isfinite(found).all()
    order = list(range(len(rewards)))
    random.shuffle(order)
    again = group_advantages([rewards[i] for i in order], [groups[i] for i in order])
    np.testing.assert_allclose(again, found[order], atol=1e-9)
    for group in set(groups):
        assert abs(found[np.array(groups) == group].sum()) < 1e-6


def test_dead_groups_are_found_by_their_rewards():
    rewards = np.array([0.7] * 8 + [0.7] * 7 + [0.8])
    assert dead_share(rewards, np.repeat([0, 1], 8)) == 0.5
