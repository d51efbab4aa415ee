"""Tests in Python that an empty value would pass: no empty value passes them, and every right answer does."""

import ast
import asyncio

import numpy as np
import pytest
from bare_sandbox import BareSandbox

from palaestra.envs.rewards import code
from palaestra.envs.rewards.code import grade_program
from palaestra.envs.rewards.code_tests import read_tests
from palaestra.envs.rewards.empty_values import GUARDS, guarded
from palaestra.envs.rewards.remote_calls import packed, unpacked

EMPTY = (np.zeros((0, 3)), np.zeros((3, 0)), np.zeros((1, 0)), np.array([]), [], [[]], ())
COMPARED = (
    "assert (f(3) == np.array([1, 2, 3])).all()",
    "assert np.all(np.array([1, 2, 3]) == f(3))",
    "assert (np.array(f(3)) == np.array([[1, 2, 3]])).all()",
    "assert not (f(3) != np.array([1, 2, 3])).any()",
    "assert np.all(np.equal(f(3), [1, 2, 3]))",
    "assert (np.abs(np.asarray(f(3)) - np.array([1, 2, 3])) < 1e-6).all()",
    "assert np.linalg.norm(f(3) - np.array([1, 2, 3])) < 1e-6",
    "got = f(3)\nwant = np.array([1, 2, 3])\nassert np.sum(np.abs(got - want)) == 0",
    "def same(a, b):\n    return bool((a == b).all())\nassert same(f(3), np.array([1, 2, 3]))",
    "def check(candidate):\n    assert (candidate(3) == np.array([1, 2, 3])).all()\ncheck(f)",
    "assert all(a == b for a, b in zip(f(3), [1, 2, 3]))",
    "assert all(a == b for a, b in zip([1, 2, 3], list(f(3))))",
    "want = [1, 2, 3]\nfor a, b in zip(f(3), want):\n    assert abs(a - b) < 1e-6",
    "got = f(3)\nfor a, b in zip(got, [1, 2, 3]):\n    assert a == b",
    "for n, a, b in zip(range(3), f(3), [1, 2, 3]):\n    assert a == b",
    "assert all(map(lambda a, b: a == b, f(3), [1, 2, 3]))",
    "def same(a, b):\n    return all(x == y for x, y in zip(a, b))\nassert same(f(3), b=[1, 2, 3])",
    "def same(a, *, b):\n    return all(x == y for x, y in zip(a, b))\nassert same([1, 2, 3], b=f(3))",
)


def passes(tests, answer):
    tree = guarded(ast.parse(f"import numpy as np\n{tests}"), "f", True)
    scope = {"f": answer if callable(answer) else lambda *_: answer, **GUARDS}
    try:
        exec(compile(tree, "<tests>", "exec"), scope)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("empty", EMPTY, ids=repr)
@pytest.mark.parametrize("tests", [one for one in COMPARED if "equal" not in one])
def test_no_empty_value_passes_a_comparison_with_one_that_is_not(tests, empty):
    assert passes(tests, np.array([1, 2, 3]))
    assert not passes(tests, empty)
    assert not passes(tests, np.array([1, 2, 4]))


@pytest.mark.parametrize("empty", [one for one in EMPTY if isinstance(one, np.ndarray)], ids=repr)
@pytest.mark.parametrize("tests", ["assert (f(3) == 5.0).all()", "assert (abs(f(3) - 5) < 1e-6).all()",
                                   "got = f(3)\nassert np.all(5 == got)"])  # fmt: skip
def test_no_empty_array_is_the_number_that_a_result_is_compared_with(tests, empty):
    assert passes(tests, np.full(3, 5.0))
    assert not passes(tests, empty)


@pytest.mark.parametrize(("tests", "answer"), [
    ("assert (f(0) == np.array([])).all() and f(0).size == 0", np.array([])),
    ("assert (f(0) == np.zeros((0, 3))).all()", np.zeros((0, 3))),
    ("assert (f(1) > 0).all()", np.array([])),
    ("assert (f(1) * 2 + 1).shape == (0,)", np.array([])),
    ("for given in ([], [1, 2]):\n    given = np.array(given)\n    assert f(given) == (given > 0).sum()",
     lambda given: int((given > 0).sum())),
    ("got = f(1)\nassert all(a <= b for a, b in zip(got, got[1:]))", [5]),
    ("given = [1]\nassert all(a > b for a, b in zip(given, f(given)))", []),
    ("def distance(a, b):\n    return sum(x != y for x, y in zip(a, b))\nassert f('', 'ab') == distance('', 'ab')", 0),
    ("for n, a, b in zip(range(3), f(0), []):\n    assert a == b", []),
    ("assert [*map(str, f(0))] == [] and dict(zip(*f(0), [])) == {}", []),
    ("assert [*zip(f(1), range(3))] == [(1, 0), (2, 1)]", iter([1, 2])),
    ("assert [*zip(f(1), 'ab', strict=True)] == [(1, 'a'), (2, 'b')]", [1, 2]),
    ("assert list(zip(f(1), [2], [3])) == [(1, 2, 3)]", [1]),
    ("assert 1 < f(1) <= 2 and f(1) + 1 - 2 == 1 and 'a' + 'b' == 'ab' and f(1) ** 2 % 3 == 1 and f(1) in (2,)", 2),
    ("assert f(1) == [1, [2, 3]] or f(1) is None", [1, [2, 3]]),
    ("assert (f(1) == [[1], [2, 3]]) is False", 5),
])  # fmt: skip
def test_what_is_empty_by_right_and_all_that_is_not_is_compared_as_ever(tests, answer):
    assert passes(tests, answer)


@pytest.mark.parametrize("tests", ["assert all(a == b for a, b in zip(f(3), [1, 2, 3]))",
                                   "for a, b in zip([1, 2, 3], f(3)):\n    assert a == b"])  # fmt: skip
def test_no_iterator_that_gives_nothing_passes_a_comparison_with_a_list(tests):
    assert passes(tests, unpacked(packed(iter([1, 2, 3]))))
    assert not passes(tests, unpacked(packed(iter([]))))


@pytest.mark.parametrize("tests", [one for one in COMPARED if "zip" in one or "map" in one] + [
    "for given, want in [(1, [1, 2, 3]), (2, [1, 2, 3])]:\n    for a, b in zip(f(given), want):\n        assert a == b",
    "def check(candidate):\n    assert all(a == b for a, b in zip(candidate(3), (1, 2, 3)))\ncheck(f)",
])  # fmt: skip
def test_no_beginning_of_a_list_that_tests_write_out_passes_a_comparison_with_it(tests):
    assert passes(tests, [1, 2, 3]) and passes(tests, iter([1, 2, 3]) if "given" not in tests else (1, 2, 3))
    for short in ([1], (1, 2), np.array([1, 2]), unpacked(packed(iter([1, 2])))):
        assert not passes(tests, short)


@pytest.mark.parametrize(("tests", "answer"), [
    ("given = [1, 5]\ngot = f(given)\nassert all(a <= b for a, b in zip(given, got))", [5]),
    ("for given in ([1, 5], [5]):\n    got = f(given)\n    assert all(a <= b for a, b in zip(given, got))", [5]),
    ("assert all(a == b for a, b in zip(f(), [2, 3, 5]))", [2, 3, 5, 7]),
    ("assert all(a < b for a, b in zip(f(), range(2, 9)))", [1, 2]),
    ("got = f()\nwant = [n for n in range(9)]\nassert all(a == b for a, b in zip(got, want))", [0, 1]),
])  # fmt: skip
def test_what_is_shorter_than_an_input_or_a_computed_list_and_what_is_longer_pass_as_ever(tests, answer):
    assert passes(tests, answer)


def test_long_data_and_deep_expressions_are_left_as_they_are():
    assert passes(f"assert f(1) == {list(range(2000))}", list(range(2000)))
    assert passes(f"assert f(1) == {' + '.join('1' * 900)}", 900)


@pytest.mark.parametrize("tests", COMPARED[0:2] + COMPARED[4:5] + COMPARED[10:11])
def test_a_program_that_returns_an_empty_array_passes_no_hidden_test(tests, monkeypatch):
    monkeypatch.setattr(code.SANDBOXES, "shared", lambda *_, **__: BareSandbox())
    monkeypatch.setattr("bare_sandbox.LIBRARIES", True)
    read = read_tests({"test_list": ["import numpy as np", tests]})

    def graded(returned):
        program = f"import numpy as np\ndef f(n):\n    return {returned}"
        return asyncio.run(grade_program(program, read))

    assert graded("np.array([1, 2, 3])").all_passed
    for returned in ("np.zeros((0, 3))", "[]"):
        assert not graded(returned).all_passed
    assert tests in graded("np.zeros((0, 3))").why, "the line is told"


SCALED = """
class Point:
    SCALE, FIELDS = 10, ("x",)
    left = None

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return all(getattr(self, one) * self.SCALE == getattr(other, one) * other.SCALE for one in self.FIELDS)
"""
FIELD = """
import dataclasses
import functools
from typing import ClassVar
@dataclasses.dataclass
class Box:
    SCALE: ClassVar[int] = 1
    side: int = 2
    @functools.cached_property
    def area(self):
        return self.side * self.SCALE
"""


@pytest.mark.parametrize(("setup", "test", "body", "right"), [
    (SCALED, "assert f(7) == Point(7)", "return Point(n)", True),
    (SCALED, "assert f(7) == Point(7)", "return Point(n + 1)", False),
    (SCALED, "assert f(7) == Point(7)", "p = Point(0); p.FIELDS = (); return p", False),
    (SCALED, "assert f(7) == Point(0)", "p = Point(1); p.SCALE = 0; return p", False),
    (SCALED, "assert f(7) == Point(7)", "Point.FIELDS = (); return Point(0)", False),
    (SCALED, "assert f(7).left.x == 7", "p = Point(0); p.left = Point(n); return p", True),
    (FIELD, "assert f(7).area == 7", "return Box(n)", True),
    (FIELD, "assert f(7).area == 7", "b = Box(n); b.area; return b", True),
    (FIELD, "assert f(7).area == 7", "b = Box(0); b.__dict__['area'] = 7; return b", False),
    (FIELD, "assert f(7).area == 7", "b = Box(1); b.SCALE = n; return b", False),
    ("class Bag:\n    depth = 3\n    def __init__(self, **given):\n        self.__dict__.update(given)\n"
     "    def __eq__(self, other):\n        return self.depth == other.depth",
     "assert f(7) == Bag(depth=7)", "return Bag(depth=n)", True),
])  # fmt: skip
def test_an_object_has_nothing_of_its_own_in_place_of_what_its_class_has_for_all(setup, test, body, right, monkeypatch):
    monkeypatch.setattr(code.SANDBOXES, "shared", lambda *_, **__: BareSandbox())
    tests = read_tests({"test_list": [test], "test_setup_code": setup})
    grade = asyncio.run(grade_program(f"def f(n):\n    {body}", tests))
    assert grade.all_passed is right, grade.why
