"""What is learned from in a step: samples of episodes, in groups, in parts that keep groups whole."""

import families
import numpy as np
from batches import batch_of
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.batch import Batch, Sample, Scored


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 7))
def test_parts_of_a_batch_are_whole_groups_and_hold_every_sample_once(groups, count):
    batch = Batch(0, (), tuple(Sample(0, group) for group in groups))
    parts = batch.mini_batches(count)
    assert len(parts) == min(count, len(set(groups)))
    assert sorted(place for part in parts for place in part) == list(range(len(groups)))
    homes = [{groups[place] for place in part} for part in parts]
    assert sum(map(len, homes)) == len(set(groups))
    assert all(homes)


def test_what_is_dropped_is_played_and_no_sample_and_an_episode_may_be_two():
    row = families.token_row(3, [2, 2])
    dropped, good, bad = (families.an_episode(row, reward=reward, group=4) for reward in (None, 1.0, 0.0))
    batch = batch_of([dropped, good, bad])
    assert [scored.fault for scored in batch.rollouts] == ["it broke", "", ""]
    assert (batch.episodes, batch.rewards.tolist(), batch.lengths) == ((good, bad), [1.0, -1.0], (4, 4))
    twice = Batch(0, batch.rollouts, (Sample(1, 0), Sample(2, 0), Sample(1, 1)))
    assert twice.episodes == (good, bad, good)
    assert twice.rewards.tolist() == [1.0, -1.0, 1.0]
    assert twice.groups.tolist() == [0, 0, 1]
    assert twice.mini_batches(2) == [[0, 1], [2]]


def test_the_reward_of_training_is_the_sum_of_its_terms():
    episode = families.an_episode()
    assert Scored(episode, {"outcome": -1.0, "tool_bonus": 0.2}).reward == -0.8
    assert np.isscalar(Scored(episode, {"outcome": 1.0}).reward)
