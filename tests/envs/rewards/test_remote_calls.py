"""Values between sessions: what crosses arrives as it was, whatever else arrives as nothing that equals anything."""

import json
import math
import time
import tracemalloc
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards.code_checker import FORGED, as_json, replied
from palaestra.envs.rewards.remote_calls import SentIterator, Unknown, packed, unpacked

leaves = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False) | st.dates()
    | st.datetimes() | st.times() | st.timedeltas()
)  # fmt: skip
hashable = st.recursive(leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5)
values = st.recursive(
    hashable | st.sets(hashable, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(hashable, inner, max_size=3),
    max_leaves=10,
)


def crossed(value):
    return unpacked(json.loads(json.dumps(packed(value))))


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
    for value in (object(), len, lambda: 1, json, Unknown, np.array([{}])):
        arrived = crossed(value)
        assert isinstance(arrived, Unknown)
        assert arrived is not value
        assert arrived != crossed(value)
    assert "deeply" in json.dumps(packed(loop))


def test_an_iterator_arrives_as_what_it_gives_and_then_ends_as_it_did():
    for value in (map(abs, [-1, 2]), iter([1, 2]), (n for n in (1, 2)), reversed((2, 1)), zip((1, 2))):
        arrived = crossed(value)
        assert isinstance(arrived, SentIterator)
        assert arrived != [1, 2]
        assert [one[0] if isinstance(one, tuple) else one for one in arrived] == [1, 2]
        assert list(arrived) == []
    failing = crossed(1 // n for n in (1, 0))
    assert next(failing) == 1
    with pytest.raises(ZeroDivisionError):
        next(failing)
    endless = crossed(count())
    assert [next(endless) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError):
        list(endless)


def test_a_plain_type_arrives_and_no_other():
    for value in (int, str, dict, (1, [bool])):
        assert crossed(value) == value
    for value in (type, object, Exception, Fraction, type("int", (int,), {})):
        assert isinstance(crossed(value), Unknown)


def test_what_holds_values_arrives_with_its_type():
    table = {1: "a", 2: "b"}
    assert crossed(table.keys()) == table.keys()
    assert crossed(table.items()) == table.items()
    assert list(crossed(table.values())) == ["a", "b"]
    for value in (range(2, 9, 3), deque([1, (2,)]), datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)):
        assert crossed(value) == value
        assert type(crossed(value)) is type(value)


@pytest.mark.parametrize("array", [
    np.arange(6).reshape(2, 3), np.array([]), np.zeros((0, 3)), np.array([1 + 2j]), np.array([[True], [False]]),
    np.array([0.5, np.inf], dtype=np.float32), np.array([], dtype=np.uint8), np.array(["x", "long"]),
], ids=str)  # fmt: skip
def test_an_array_of_numbers_or_texts_arrives_as_such(array):
    arrived = crossed(array)
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    assert np.array_equal(arrived, array)


class Point:
    """As tests define it."""

    __module__ = "tests"

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


def test_an_object_is_made_anew_of_the_class_that_the_other_end_defines():
    sent = json.loads(json.dumps(packed([Point(Point((1, 2)))])))
    theirs = type("Point", (), {"__module__": "solution", "__init__": None})
    arrived = unpacked(sent, {"__name__": "solution", "Point": theirs})[0]
    assert (type(arrived), arrived.x.x) == (theirs, (1, 2))
    assert unpacked(sent, {"__name__": "tests", "Point": Point}) == [Point(Point((1, 2)))]
    for classes in (None, {}, {"__name__": "tests"}, {"__name__": "tests", "Point": len}):
        assert isinstance(unpacked(sent, classes)[0], Unknown)


def test_no_object_is_made_of_a_class_that_the_tests_only_imported():
    class Agrees:
        def __eq__(self, other):
            return True

    forged = {"$": "object", "of": ["Agrees", {}]}
    assert isinstance(unpacked(forged, {"__name__": "tests", "Agrees": Agrees}), Unknown)


def test_an_object_brings_no_methods_of_its_own():
    class Node:
        default = 0

        def equals(self, other):
            return False

    classes = {"__name__": "tests", "Node": Node}
    Node.__module__ = "tests"
    with pytest.raises(ValueError, match="in place of methods"):
        unpacked({"$": "object", "of": ["Node", {"equals": {"$": "type", "of": "bool"}}]}, classes)
    assert unpacked({"$": "object", "of": ["Node", {"default": 3}]}, classes).default == 3


def tagged(kind, content):
    return {"$": kind, "of": content}


ENDLESS = tagged("range", [0, 10**12, 1])


@pytest.mark.parametrize("forged", [
    tagged("tuple", ENDLESS), tagged("set", ENDLESS), tagged("deque", ENDLESS), tagged("keys", ENDLESS),
    tagged("iterator", [ENDLESS, ""]), tagged("iterator", ENDLESS), tagged("dict", ENDLESS), tagged("items", [ENDLESS]),
    tagged("Fraction", ["1e999999999", None]), tagged("Fraction", "1e999999999"), tagged("Fraction", [1, 0]),
    tagged("Decimal", "1e999999999"), tagged("Decimal", ["x"]), tagged("Decimal", "sNaN"), tagged("date", 5),
    tagged("timedelta", [10**30, 0, 0]), tagged("array", ["<U999999999", [1], ["x"]]),
    tagged("array", ["int64", [10**12], [1]]), tagged("array", ["int64", [1], [10**400]]),
    tagged("array", ["int64", [1], [ENDLESS]]), tagged("array", ["O", [1], [1]]), tagged("array", 5),
    tagged("object", ["Point", {"x": ENDLESS}]), tagged("object", []), tagged([], 1), tagged({}, 1), tagged(None, 1),
    tagged("range", [0, 1, 0]), tagged("range", 5), tagged("type", "exec"), tagged("type", []), tagged("deque", 5),
], ids=lambda value: json.dumps(value)[:50])  # fmt: skip
def test_what_nobody_packed_costs_no_more_than_its_text_and_raises_what_is_known(forged):
    tracemalloc.start()
    begun = time.thread_time()
    for value in (forged, [forged], {"k": forged}):
        for read in (unpacked, as_json):
            with suppress(FORGED):
                read(value)
        assert isinstance(replied(json.dumps({"value": value})), str)
    assert time.thread_time() - begun < 5
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_exact_numbers_are_numbers_to_tests_in_json_and_arrays_and_iterators_are_nothing():
    assert as_json(packed([Fraction(4, 2), Decimal("0.5"), (1,)])) == [2, 0.5, [1]]
    for value in (np.array([1]), iter([1]), range(1), deque([1]), {1}):
        assert as_json(packed(value)) != [1]
