"""Group advantages, and those of the controls."""

import numpy as np
import pytest
from batches import rewarded
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.batch import BatchScores
from palaestra.trainers.evaluation.metrics import dead_share
from palaestra.trainers.losses.group_advantages import Shuffled, Successes, group_advantages

REWARDS, GROUPS = [1.0, -1.0, -0.6, 1.0, -0.8, 1.0], [0, 0, 0, 1, 1, 1]


def compared(rewards, groups):
    return group_advantages(np.array(rewards, float), np.array(groups))


def test_groups_are_compared_within_themselves():
    mixed = compared([1, 5, 0, 9, 0, 5, 0, 5], [3, 1, 3, 1, 3, 1, 3, 1])
    np.testing.assert_allclose(mixed[::2], [1.5, -0.5, -0.5, -0.5], atol=1e-5)
    np.testing.assert_allclose(mixed[1::2], [-0.5, 1.5, -0.5, -0.5], atol=1e-5)


def test_a_group_of_one_has_nothing_to_be_compared_with():
    assert compared([5.0, 1.0, 0.0], [0, 1, 1])[0] == 0


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.integers(0, 3)), min_size=1, max_size=20),
    st.floats(-1, 1),
    st.randoms(use_true_random=False),
)
def test_order_and_a_common_offset_change_nothing(members, offset, random):
    rewards, groups = (list(part) for part in zip(*members, strict=True))
    found = compared(rewards, groups)
    assert np.isfinite(found).all()
    order = list(range(len(rewards)))
    random.shuffle(order)
    again = compared([rewards[i] for i in order], [groups[i] for i in order])
    np.testing.assert_allclose(again, found[order], atol=1e-9)
    for group in set(groups):
        assert abs(found[np.array(groups) == group].sum()) < 1e-6


def test_dead_groups_are_found_by_their_rewards():
    rewards = np.array([0.7] * 8 + [0.7] * 7 + [0.8])
    assert dead_share(rewards, np.repeat([0, 1], 8)) == 0.5


def test_own_successes_are_imitated_and_failures_ignored():
    assert Successes()(rewarded(REWARDS, GROUPS), BatchScores()).tolist() == [1, 0, 0, 1, 0, 1]
    dear = BatchScores(costs=tuple(np.full(2, cost) for cost in (9.0, 0, 0, 0, 0, 0)))
    assert Successes()(rewarded(REWARDS, GROUPS), dear).tolist() == [0, 0, 0, 1, 0, 1], "a KL that is charged counts"


def test_shuffled_rewards_are_the_same_rewards_elsewhere_in_each_batch_and_repeat_by_seed(monkeypatch):
    dealt = []
    monkeypatch.setattr(
        "palaestra.trainers.losses.group_advantages.group_advantages",
        lambda rewards, groups: dealt.append(rewards.tolist()),
    )

    def deal(seed, numbers=range(20)):
        dealt.clear()
        for number in numbers:
            Shuffled(seed)(rewarded(REWARDS, GROUPS, number), BatchScores())
        return list(dealt)

    first = deal(3)
    assert all(sorted(rewards) == pytest.approx(sorted(REWARDS)) for rewards in first)
    assert len({tuple(rewards) for rewards in first}) > 10
    counts = np.mean([[reward == 1.0 for reward in rewards] for rewards in first], axis=0)
    assert ((counts > 0.1) & (counts < 0.9)).all()
    assert deal(3, [7]) == [first[7]], "whenever it is asked for, as after a resume"
    assert deal(4) != first
