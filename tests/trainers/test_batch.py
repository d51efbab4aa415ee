"""Masks are decided where episodes are packed, and nowhere else."""

import families
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.trainers.batch import pack, pack_rows

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


def test_prompts_and_tool_results_have_no_advantage():
    batch = pack([families.an_episode(families.token_row(4, [2, 3], reply=5))], [2.0])
    assert batch.advantages_N[~batch.sampled_N].abs().sum() == 0
    assert (batch.advantages_N[batch.sampled_N] == 2.0).all()


def test_rows_of_one_episode_share_its_advantage_and_rows_without_a_token_are_left_out():
    empty = families.token_row(5, [])
    first, second, third = (families.token_row(2, [n]) for n in (1, 2, 3))
    batch = pack(
        [families.an_episode(empty), families.an_episode(first, second), families.an_episode(third)], [9.0, 1.0, 2.0]
    )
    assert batch.row_N.max() == 2
    assert [batch.select([r]).episode_N[0].item() for r in range(3)] == [1, 1, 2]
    assert [batch.select([r]).advantages_N.max().item() for r in range(3)] == [1.0, 1.0, 2.0]


def test_rows_are_chosen_in_order_and_renumbered():
    batch = pack_rows(rows_of([(1, [1]), (2, [2]), (3, [3]), (4, [4])]))
    part = batch.select([3, 1])
    assert part.lengths.tolist() == [4, 8]
    assert part.episode_N.unique().tolist() == [1, 3]


def test_without_advantages_every_sampled_token_is_imitated():
    batch = pack_rows(rows_of([(2, [3])]))
    assert batch.advantages_N.tolist() == batch.sampled_N.float().tolist()


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        pack([families.an_episode(families.token_row(3, []))], [1.0])
    with pytest.raises(ValueError, match=r"shorter|longer"):
        pack([families.an_episode(families.token_row(3, [1]))], [])


def test_a_batch_moves_to_a_device_whole():
    batch = pack_rows(rows_of([(2, [3])])).to(torch.device("cpu"))
    assert all(getattr(batch, name).device.type == "cpu" for name in batch.__slots__)
