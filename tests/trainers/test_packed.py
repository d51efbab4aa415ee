"""Masks are decided where episodes are packed, and nowhere else."""

import families
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.learn.packing import pack, pack_rows

shapes = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=3)), min_size=1, max_size=6
)


def rows_of(shape):
    return [families.token_row(prompt, said, seed=number) for number, (prompt, said) in enumerate(shape)]


@given(shapes)
def test_nothing_is_lost_moved_or_marked(shape):
    rows = rows_of(shape)
    batch = pack([families.an_episode(row) for row in rows], [0.5 + n for n in range(len(rows))])
    assert batch.lengths.tolist() == [len(row) for row in rows]
    assert int(batch.sampled_N.sum()) == sum(int(row.sampled.sum()) for row in rows)
    for number, row in enumerate(rows):
        part = batch.select([number])
        assert part.ids_N.tolist() == row.ids.tolist()
        assert part.sampled_N.tolist() == row.sampled.tolist()
        assert part.sampled_logprobs_N.tolist() == row.logprobs.tolist()
        assert part.versions_N.tolist() == row.versions.tolist()
        assert part.advantages_N.tolist() == [(0.5 + number) * float(s) for s in row.sampled]
        assert set(part.row_N.tolist()) == {0}
        assert set(part.episode_N.tolist()) == {number}


def test_rows_of_one_episode_share_its_advantage_and_rows_without_a_token_are_left_out():
    empty = families.token_row(5, [])
    first, second, third = (families.token_row(2, [n]) for n in (1, 2, 3))
    episodes = [families.an_episode(empty), families.an_episode(first, second), families.an_episode(third)]
    batch = pack(episodes, [9.0, 1.0, 2.0], [0.5, 0.25, 0.125])
    assert batch.row_N.max() == 2
    assert [batch.select([r]).episode_N[0].item() for r in range(3)] == [1, 1, 2]
    assert [batch.select([r]).advantages_N.max().item() for r in range(3)] == [1.0, 1.0, 2.0]
    assert [batch.select([r]).weights_N.max().item() for r in range(3)] == [0.25, 0.25, 0.125]


def test_what_is_given_a_token_stands_at_that_token_and_comes_back_by_episode():
    """Of an episode of several rows, one of them empty, and one that stands beside it."""
    rows = [families.token_row(2, [1, 2]), families.token_row(4, []), families.token_row(1, [2], reply=1)]
    episodes = [families.an_episode(*rows), families.an_episode(families.token_row(3, [2]))]
    values = [np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([6.0, 7.0])]
    batch = pack(episodes, values, reference=[-value for value in values])
    assert batch.advantages_N[batch.sampled_N].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert batch.advantages_N[~batch.sampled_N].abs().sum() == 0
    assert batch.reference_N.tolist() == (-batch.advantages_N).tolist()
    assert batch.select([0, 1]).advantages_N[batch.select([0, 1]).sampled_N].tolist() == [1, 2, 3, 4, 5]
    assert [part.tolist() for part in batch.by_episode(batch.advantages_N)] == [value.tolist() for value in values]
    with pytest.raises(ValueError, match=r"5 output values|cannot assign|split|shape"):
        pack(episodes, [values[1], values[0]])


def test_rows_are_chosen_in_order_and_renumbered():
    batch = pack_rows(rows_of([(1, [1]), (2, [2]), (3, [3]), (4, [4])]))
    part = batch.select([3, 1])
    assert part.lengths.tolist() == [4, 8]
    assert part.episode_N.unique().tolist() == [1, 3]


def test_without_advantages_every_sampled_token_is_imitated_and_weighs_the_same():
    batch = pack_rows(rows_of([(2, [3]), (1, [1, 4])]))
    assert batch.advantages_N.tolist() == batch.sampled_N.float().tolist()
    assert batch.weights_N.tolist() == pytest.approx((batch.sampled_N / 8).tolist())


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        pack([families.an_episode(families.token_row(3, []))], [1.0])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        pack([families.an_episode(families.token_row(3, [1]))], [])


def test_a_batch_moves_to_a_device_whole():
    batch = pack_rows(rows_of([(2, [3])])).to(torch.device("cpu"))
    assert all(getattr(batch, name).device.type == "cpu" for name in batch.__slots__)
