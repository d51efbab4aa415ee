"""A layout holds every row, each common beginning once; parts hold every row, and no more than they may."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.errors import UsageError
from palaestra.trainers.learn import prefix_trie as shared
from palaestra.trainers.learn.prefix_attention import AttentionPlan, planned_attention
from palaestra.trainers.learn.prefix_trie import LEAST, in_order, lay_out, parts


@st.composite
def tries(draw):
    """Rows that begin alike, to any depth: each goes on from a place of one before it."""
    found = []
    for number in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from(found)) if found and draw(st.booleans()) else np.zeros(0, int)
        kept = parent[: draw(st.integers(0, len(parent)))]
        own = np.full(draw(st.integers(0 if len(kept) else 1, 60)), number % draw(st.integers(1, 9)))
        found.append(np.concatenate([kept, own]))
    return found


@given(tries())
def test_every_row_can_be_read_from_the_layout(rows):
    order, commons = in_order(rows)
    layout = lay_out([len(rows[i]) for i in order], commons)
    flat = np.full(layout.size, -1)
    for one in layout.segments:
        flat[one.begin : one.begin + one.size] = rows[order[one.row]][one.place : one.place + one.size]
    for i, places in zip(order, layout.places, strict=True):
        assert flat[places].tolist() == rows[i].tolist()


@given(tries())
def test_what_follows_from_a_segment_lies_right_behind_it_and_nothing_else_does(rows):
    order, commons = in_order(rows)
    layout = lay_out([len(rows[i]) for i in order], commons)
    for number, one in enumerate(layout.segments):
        follows = [path[path.index(number) + 1 :] for path in layout.paths if number in path]
        assert {place for path in follows for i in path for place in _places(layout.segments[i])} == set(
            range(one.begin + one.size, one.end)
        )
        assert all(path.index(number) == one.depth for path in layout.paths if number in path)


def _places(segment):
    return range(segment.begin, segment.begin + segment.size)


@given(tries())
def test_beginnings_that_are_long_enough_are_laid_out_once(rows):
    """Only what goes beyond another fork by less than the least is laid out twice."""
    order, commons = in_order(rows)
    layout = lay_out([len(rows[i]) for i in order], commons)
    least = sum(len(rows[i]) - common for i, common in zip(order, commons, strict=True))
    assert least <= layout.size <= least + (LEAST - 1) * len(rows)
    assert all(one.size >= LEAST for one in layout.segments if one.end > one.begin + one.size)


@given(tries(), st.integers(1, 400))
def test_parts_hold_every_row_once_and_no_more_than_they_may(rows, most):
    order, commons = in_order(rows)
    lengths = [len(rows[i]) for i in order]
    found = parts(lengths, commons, most)
    assert [row for part in found for row in part] == list(range(len(rows)))
    for part in found:
        size = lay_out(lengths[part.start : part.stop], [0, *commons[part.start + 1 : part.stop]]).size
        assert len(part) == 1 or size <= most


def test_groups_stay_together_where_they_fit_and_only_those_too_large_are_cut():
    rows = [np.concatenate([np.full(100, group), [50 + answer] * 10]) for group in range(4) for answer in range(5)]
    order, commons = in_order(rows)
    lengths = [len(rows[i]) for i in order]
    assert [len(part) for part in parts(lengths, commons, 320)] == [10, 10]
    assert [len(part) for part in parts(lengths, commons, 290)] == [5, 5, 5, 5]
    assert [len(part) for part in parts(lengths, commons, 130)] == [3, 2, 1] * 0 + [3, 2, 3, 2, 3, 2, 3, 2]
    assert shared.lay_out(lengths, commons).size == 4 * (100 + 5 * 10)


@given(tries())
def test_the_calls_of_a_plan_are_those_of_the_trie_and_in_either_way_the_same(rows):
    """Each token attends to itself and to all that stands before it in its row, once."""
    order, commons = in_order(rows)
    layout = lay_out([len(rows[i]) for i in order], commons)
    expected = np.zeros((layout.size, layout.size), int)
    for places in layout.places:
        expected[np.ix_(places, places)] = np.tri(len(places), dtype=int)
    plan, everything = AttentionPlan(layout, torch.device("cpu")), torch.arange(layout.size)
    for calls in (plan.by_segment, plan.by_depth):
        found = np.zeros_like(expected)
        for call in calls:
            queries, keys = everything[call.queries].numpy(), everything[call.keys].numpy()
            ends = call.lengths[:2] if call.lengths else ([0, len(queries)], [0, len(keys)])
            for q, k, q_end, k_end in zip(*(each[:-1] for each in ends), *(each[1:] for each in ends), strict=True):
                own = np.ones((q_end - q, k_end - k), int)
                found[np.ix_(queries[q:q_end], keys[k:k_end])] += np.tril(own) if call.causal else own
        assert (found == expected).all()


@pytest.mark.parametrize("asked", [{"softcap": 30.0}, {"sliding_window": 16}, {"s_aux": 1}, {"dropout": 0.1}])
def test_what_a_layout_cannot_have_is_refused_by_name(asked):
    plan = AttentionPlan(lay_out([5], [0]), torch.device("cpu"))
    with pytest.raises(UsageError, match=f"cannot have {next(iter(asked))}; pad"):
        planned_attention(None, *torch.zeros(3, 1, 2, 5, 8), None, plan=plan, **asked)
