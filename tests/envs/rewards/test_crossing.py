"""Values between sessions: what crosses arrives as it was, whatever else arrives as nothing that equals anything."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.crossing import Unknown, pack, unpack

leaves = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
)  # fmt: skip
hashable = st.recursive(leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
values = st.recursive(
    hashable | st.sets(hashable, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(hashable, inner, max_size=3),
    max_leaves=10,
)


def crossed(value):
    return unpack(json.loads(json.dumps(pack(value))))


@given(values)
def test_a_plain_value_arrives_with_its_type(value):
    arrived = crossed(value)
    assert arrived == value
    assert repr(arrived) == repr(value) or isinstance(value, set | frozenset | list | tuple | dict)
    assert type(arrived) is type(value)


def test_numbers_that_json_lacks_arrive():
    assert math.isnan(crossed(math.nan))
    assert crossed([math.inf, -math.inf]) == [math.inf, -math.inf]
    assert repr(crossed(-0.0)) == "-0.0"
    assert crossed({"$": "tuple", "of": 1}) == {"$": "tuple", "of": 1}


class Agreeable(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Anything:
    def __eq__(self, other):
        return True


@pytest.mark.parametrize("liar", [Agreeable("x"), [Agreeable("x")], {"k": Agreeable("x")}, Anything(), (Anything(),)])
def test_an_equality_of_the_agents_own_does_not_cross(liar):
    truth = {"k": "y"} if isinstance(liar, dict) else type(liar)(["y"]) if isinstance(liar, list | tuple) else "y"
    assert liar == truth
    assert crossed(liar) != truth


def test_objects_arrive_as_something_that_equals_nothing():
    loop = []
    loop.append(loop)
    for value in (object(), len, range(3), iter([]), (x for x in ()), Unknown):
        arrived = crossed(value)
        assert isinstance(arrived, Unknown)
        assert arrived != value
        assert arrived != crossed(value)
    assert "deeply" in json.dumps(pack(loop))
