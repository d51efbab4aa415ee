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


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({}, "no tests"),
        ({"private_test_cases": "***"}, "neither JSON nor base64"),
        ({"private_test_cases": "[1]"}, "no list of test cases"),
        ({"private_test_cases": "[]"}, "no test case"),
        ({"input_output": "{"}, "no JSON"),
        ({"input_output": '{"inputs": [1], "outputs": []}'}, "same length"),
        ({"input_output": '{"fn_name": "f", "inputs": [1], "outputs": [1]}'}, "list of arguments"),
        ({"test_list": ["assert x == 1"]}, "no assertion"),
        ({"test_list": ["assert f("]}, "no Python"),
        ({"input_output": "5"}, "neither"),
        (livecodebench("functional"), "no func_name"),
        ({"test_list": ["f(1) == 2", "f(2) == 3"]}, "assert nothing"),
        ({"test_list": ['assert (f(1) == 2, "one and one")']}, "assert nothing"),
        ({"test": "def check(candidate):\n    candidate(1)\n    assert True", "entry_point": "f"}, "assert nothing"),
        ({"input_output": '{"inputs": ["1", "2"], "outputs": ["", " \\n"]}'}, "does nothing"),
        ({"input_output": '{"fn_name": "f", "inputs": [[1], [2]], "outputs": [null, [null]]}'}, "does nothing"),
    ],
)
def test_what_is_wrong_with_tests_is_said(columns, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_tests(columns)


def test_tests_that_unpack_to_too_much_are_refused(monkeypatch):
    monkeypatch.setattr(code_tests, "MAX_TEST_BYTES", 1000)
    with pytest.raises(ValueError, match="MAX_TEST_BYTES"):
        read_tests(livecodebench(private_test_cases=packed("x" * 100_000)))
