"""Hidden tests from the columns of data sets; nothing that somebody wrote is unpickled."""

import base64
import contextlib
import json
import os
import pickle
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.envs.rewards import code_tests
from palaestra.envs.rewards.code_tests import Case, pickled_text, read_tests
from palaestra.errors import UsageError


def packed(value):
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def livecodebench(kind="stdin", **columns):
    cases = [{"input": "1 2\n", "output": "3\n", "testtype": kind}]
    hidden = packed(json.dumps([{"input": "4 5\n", "output": "9\n", "testtype": kind}]))
    return {"public_test_cases": json.dumps(cases), "private_test_cases": hidden, "metadata": "{}", **columns}


def test_livecodebench_has_public_and_packed_private_cases():
    tests = read_tests(livecodebench())
    assert tests.cases == (Case("1 2\n", ("3\n",)), Case("4 5\n", ("9\n",)))
    assert tests.function == ""


def test_livecodebench_functions_take_one_argument_a_line():
    cases = json.dumps([{"input": '[1, 2]\n"ab"', "output": "true", "testtype": "functional"}])
    tests = read_tests({"private_test_cases": cases, "metadata": json.dumps({"func_name": "f"})})
    assert tests.function == "f"
    assert tests.cases == (Case([[1, 2], "ab"], (True,)),)
    case = {"testtype": "functional", "input": "1", "output": "2", "metadata": {"func_name": "f"}}
    assert read_tests({"tests": [case]}).function == "f"


def test_apps_has_programs_and_functions():
    stdin = {"inputs": ["1\n", ["2", "3"]], "outputs": ["2\n", ["4", "6"]]}
    assert read_tests({"input_output": json.dumps(stdin)}).cases == (Case("1\n", ("2\n",)), Case("2\n3", ("4\n6",)))
    calls = {"fn_name": "twice", "inputs": [[1], [[2]]], "outputs": [[2], [[4]]]}
    tests = read_tests({"input_output": json.dumps(calls)})
    assert tests.function == "twice"
    assert tests.cases == (Case([1], (2, [2])), Case([[2]], ([4], [[4]])))


def test_assertions_say_what_they_call():
    assert read_tests({"test_list": ["assert set(similar((3, 4), (5, 4))) == {4}"]}).function == "similar"
    tests = read_tests({"test_list": ["assert not (is_odd(2))", "assert is_odd(3)"]})
    assert (tests.function, tests.code.count("assert")) == ("is_odd", 2)
    assert read_tests({"test_list": ["assert sum(10,15) == 6"]}).function == "sum", "as a builtin is called"
    raises = "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass"
    assert read_tests({"test_list": [raises]}).function == "f"
    assert read_tests({"test": "def check(c): assert c(1)", "entry_point": "f"}).function == "f"
    assert read_tests({}, json.dumps(["assert f(1) == 2"])).function == "f"
    assert read_tests({}, json.dumps({"inputs": ["1"], "outputs": ["2"]})).cases == (Case("1", ("2",)),)


class Evil:
    """What is pickled of it makes a folder as it is read."""

    folder = ""

    def __reduce__(self):
        return (os.mkdir, (self.folder,))


@pytest.mark.parametrize("value", [Evil(), ["x"], b"x", 7, None, {"a": "b"}, ("x", "y"), bytearray(b"x")])
def test_a_pickle_of_anything_but_one_text_is_refused(value, tmp_path, monkeypatch):
    monkeypatch.setattr(Evil, "folder", str(tmp_path / "unpickled"))
    with pytest.raises(ValueError, match=r"no pickle of one text|a pickle of"):
        read_tests(livecodebench(private_test_cases=packed(value)))
    assert not (tmp_path / "unpickled").exists()


@given(st.text(), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_pickled_text_is_read_in_every_protocol(text, protocol):
    assert pickled_text(pickle.dumps(text, protocol)) == text


@given(st.binary(max_size=200))
def test_bytes_that_are_no_pickle_are_refused(raw):
    with contextlib.suppress(ValueError):
        assert isinstance(pickled_text(raw), str)


@pytest.mark.parametrize(("columns", "complaint"), [
    ({}, "no tests"), ({"private_test_cases": "***"}, "neither JSON nor base64"),
    ({"private_test_cases": "[1]"}, "no list of test cases"), ({"private_test_cases": "[]"}, "no test case"),
    ({"input_output": "{"}, "no JSON"), ({"input_output": '{"inputs": [1], "outputs": []}'}, "same length"),
    ({"input_output": '{"fn_name": "f", "inputs": [1], "outputs": [1]}'}, "list of arguments"),
    ({"test_list": ["assert x == 1"]}, "no assertion"), ({"test_list": ["assert f("]}, "no Python"),
    ({"input_output": "5"}, "neither"), (livecodebench("functional"), "func_name or fn_name is not there"),
    ({"input_output": '{"fn_name": "a b", "inputs": [[1]], "outputs": [1]}'}, "no name of Python"),
    ({"input_output": '{"fn_name": 5, "inputs": [[1]], "outputs": [1]}'}, "no name of Python"),
    ({"test": "def check(c): assert c(1)", "entry_point": "class"}, "no name of Python"),
    ({"verification_info": '{"language": "rust", "test_cases": [{"input": "1", "output": "2"}]}'}, "for rust"),
    ({"test_list": ["assert f(1) == 2"], "test_setup_code": "x = ="}, "set-up is no Python"),
    ({"test_list": 5}, "list of assertions"), ({"test_list": ["f(1) == 2", "f(2) == 3"]}, "assert nothing"),
    ({"test_list": ['assert (f(1) == 2, "one and one")']}, "assert nothing"),
    ({"test": "def check(candidate):\n    candidate(1)\n    assert True", "entry_point": "f"}, "assert nothing"),
    ({"input_output": '{"inputs": ["1", "2"], "outputs": ["", " \\n"]}'}, "does nothing"),
    ({"input_output": '{"fn_name": "f", "inputs": [[1], [2]], "outputs": [null, [null]]}'}, "does nothing"),
])  # fmt: skip
def test_what_is_wrong_with_tests_is_said(columns, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_tests(columns)


def test_tests_that_unpack_to_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(code_tests, "MAX_TEST_BYTES", 1000)
    with pytest.raises(ValueError, match="MAX_TEST_BYTES"):
        read_tests(livecodebench(private_test_cases=packed("x" * 100_000)))


def test_columns_that_are_no_mapping_are_refused_in_words():
    for wrong in (None, [1], "x"):
        with pytest.raises(UsageError, match="columns is"):
            read_tests(wrong)


def test_what_stands_around_assertions_is_not_what_they_ask_for():
    imports = {"test_imports": ["from math import isclose"], "test_list": ["assert isclose(f(1), 2)"]}
    assert read_tests(imports).function == "f"
    setup = {"test_setup_code": "def pair(x):\n    return x, x", "test_list": ["assert pair(1) == f(1)"]}
    assert read_tests(setup).function == "f"


def test_a_set_up_is_run_and_the_values_it_makes_stay_with_the_tests():
    setup = "class Node:\n    pass\n\nroot = Node()\nexpected = 7"
    columns = {"test_imports": ["import math"], "test_setup_code": setup, "test_list": ["assert f(root) == 3"]}
    tests = read_tests(columns)
    assert (tests.function, "expected" in tests.context) == ("f", False)
    assert "import math" in tests.context
    assert "class Node" in tests.context
    assert "root = Node()\nexpected = 7\n" in tests.code


@pytest.mark.parametrize(("setup", "complaint"), [
    ("def known(x):\n    return x\nclass Node:\n    def size(self):\n        return known(1)", "Node .* uses known"),
    ("SIZE = 4\nclass Node:\n    size = SIZE", "Node .* uses SIZE"),
    ("class Solution:\n    def f(self, x):\n        return x", "Solution .* defines f, which the program is to define"),
])  # fmt: skip
def test_a_class_of_a_set_up_that_holds_the_answer_or_needs_what_the_program_lacks_is_refused(setup, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_tests({"context": setup, "entry_point": "f", "test": "def check(c):\n    assert c(1) == 1"})


def test_functions_of_a_set_up_stay_with_the_tests_unless_the_agent_was_shown_them():
    setup = "import math\ndef near(a, b):\n    return abs(a - b) < 1"
    for shown, handed in (("", False), (f"Use:\n{setup}", True)):
        tests = read_tests({"test_setup_code": setup, "test_list": ["assert near(f(1), 1)"]}, prompt=shown)
        assert ("def near" in tests.context, "def near" in tests.code) == (handed, not handed)
        assert (tests.function, "import math" in tests.context) == ("f", True)


@pytest.mark.parametrize(("tests", "asked"), [
    ({"test_list": ["assert f(1, [2, 3]) == 2"]}, "Define a function `f` of 2 arguments."),
    ({"test_list": ["assert f(1) == 2", "assert f(1, 2)"]}, "Define a function `f` of 1 or 2 arguments."),
    ({"test_list": ["assert f(1, by=2)"]}, "Define a function `f` of 2 arguments; given by name: `by`."),
    ({"test_list": ["assert f(*[1]) == 2", "assert f(1)"]}, "Define a function `f`."),
    ({"test": "def check(c): assert c(1)", "entry_point": "f"}, "Define a function `f`."),
    ({"input_output": '{"fn_name": "f", "inputs": [[1]], "outputs": [1]}'}, "Define a function `f` of 1 argument."),
    ({"input_output": '{"inputs": ["1"], "outputs": ["1"]}'}, ""),
])  # fmt: skip
def test_what_to_define_is_told_without_a_test(tests, asked):
    assert read_tests(tests).request() == asked


PRIME = [{"type": "stdin_stdout", "input": given, "output": out} for given, out in (("1\n", "2\n"), ("", "3"))]


def test_primeintellect_has_its_cases_in_verification_info():
    for value in (json.dumps({"language": "python", "test_cases": PRIME}), {"test_cases": PRIME}, PRIME):
        assert read_tests({"verification_info": value}).cases == (Case("1\n", ("2\n",)), Case("", ("3",)))
    calls = [{"type": "function_call", "fn_name": "f", "input": [1, 2], "output": [3]}]
    tests = read_tests({"verification_info": {"test_cases": calls}})
    assert (tests.function, tests.cases) == ("f", (Case([1, 2], (3, [3])),))
    with pytest.raises(ValueError, match="f, g"):
        read_tests({"verification_info": {"test_cases": [*calls, {**calls[0], "fn_name": "g"}]}})


@pytest.mark.parametrize("lines", [
    ["assert f(lambda v: v + 1, [1, 2]) == [2, 3]"], ["assert f(len, [1])"], ["assert f([1], key=str.lower, by=abs)"],
    ["def add(x):\n    return x", "assert f([add], 1) == 2"], ["g = lambda x: x", "assert f(g, 1) == 2"],
])  # fmt: skip
def test_a_function_that_is_handed_to_the_program_is_refused(lines):
    with pytest.raises(ValueError, match="hands a function to the program"):
        read_tests({"test_list": lines})
    indented = "\n".join(lines).replace("f(", "candidate(").replace("\n", "\n    ")
    with pytest.raises(ValueError, match="hands a function to the program"):
        read_tests({"test": f"def check(candidate):\n    {indented}", "entry_point": "f"})


@pytest.mark.parametrize("lines", [
    ["a = [2, 1]", "f(a)", "assert a == [1, 2]"], ["a = [2, 1]", "assert f(a) is None", "assert a == [1, 2]"],
    ["root = [[1]]", "r = f(x=[root])", "assert len(root) == 0, r"],
])  # fmt: skip
def test_an_assertion_about_an_argument_after_the_call_is_refused(lines):
    with pytest.raises(ValueError, match="looks at an argument after the call"):
        read_tests({"test_list": lines})


@pytest.mark.parametrize("lines", [
    ["a = [2, 1]", "assert f(a) == sorted(a)", "b = f(a)", "c = b[0]", "assert c == min(a)"],
    ["assert f(list(map(lambda x: x, [1]))) == 2", "assert f(sorted([1], key=len)) == 1"],
    ["for given, wanted in [(1, 2)]:\n    got = f(given)\n    assert got == wanted, given"],
    ["assert f((1, 'x'), int) == ['x']"], ["str = 'x'", "assert f(str) == 'y'"],
    ["a = 5", "assert a == 5", "assert f(a) == 6"], ["def near(x, y):\n    assert abs(x - y) < 1", "near(f(1), 1)"],
])  # fmt: skip
def test_tests_about_what_is_returned_are_read(lines):
    assert read_tests({"test_list": lines}).function == "f"
