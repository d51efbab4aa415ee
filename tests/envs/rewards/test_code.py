"""Grading programs by hidden tests, over a sandbox without walls; attacks are in tests/prove/test_grader_attacks.py."""

import asyncio
import time

import pytest
from bare_sandbox import BareSandbox, BareSession

from palaestra.envs.rewards import code
from palaestra.envs.rewards.code import Allowance, Grade, grade_program, program_of
from palaestra.envs.rewards.code_checker import same_output, same_value
from palaestra.envs.rewards.code_tests import Case, HiddenTests
from palaestra.errors import Broken

ADDS = HiddenTests((Case("1 2\n", ("3\n",)), Case("4 5\n", ("9",)), Case("0 0", ("0",))))
DOUBLES = HiddenTests((Case([1], (2,)), Case([[1]], ([1, 1],)), Case(["ab"], ("abab",))), function="double")
CHECKS = HiddenTests(
    code="def check(candidate):\n    assert candidate(2, by=3) == 6\n    assert offset(candidate(1)) == 3",
    function="scale",
    context="def offset(x):\n    return x + 1\n",
)


@pytest.fixture(autouse=True)
def sandbox(monkeypatch):
    monkeypatch.setattr(code, "shared_sandbox", lambda *_, **__: BareSandbox())


def grade(program, tests, **allowance):
    return asyncio.run(grade_program(program, tests, allowance=Allowance(**allowance)))


def test_the_last_python_block_is_the_program():
    assert program_of("```python\na\n```\nor\n```python\nb\n```\n```text\nc\n```") == "b\n"
    assert program_of("```\na\n```") == "a\n"
    assert program_of("```py\na\n```\n```\nb\n```") == "a\n"
    assert program_of('````python\ns = """\n```\n"""\n````') == 's = """\n```\n"""\n'
    assert program_of("```python\nnever closed") is None
    assert program_of("print(1)") is None
    assert program_of(None) is None


def test_a_fence_in_a_list_or_with_windows_line_ends_holds_the_program_too():
    assert program_of("1. So:\n   ```python\n   def f():\n       return 1\n\n   ```\n") == "def f():\n    return 1\n\n"
    assert program_of("- x\n\n\t```\n\ta\n\t```") == "a\n"
    assert program_of('  ```python\n  s = """\nflush"""\n  ```') == 's = """\nflush"""\n'
    assert program_of("So:\r\n```python\r\na\r\nb\r\n```\r\n") == "a\nb\n"


def test_fences_that_nobody_closes_cost_no_more_than_their_length():
    begun = time.process_time()
    for opened in ("```x\n", "```\n~~~\n", "~~~~\n````\n", "`", " ```\n"):
        program_of(opened * 10_000)
    assert program_of("```x\n" * 10_000 + "```\n```python\na\n```") == "a\n"
    assert time.process_time() - begun < 1.5


def test_a_program_is_run_once_a_case_and_what_it_prints_is_compared():
    assert grade("print(sum(map(int, input().split())))", ADDS) == Grade(True, (True, True, True))
    some = grade("print(3)", ADDS)
    assert (some.passed, some.fraction, some.all_passed) == ((True, False, False), 1 / 3, False)


def test_a_program_that_fails_after_printing_has_failed():
    assert grade("print(3)\nraise SystemExit(1)", ADDS).fraction == 0
    assert grade("print(3)\n1/0", ADDS).why.endswith("division by zero")


@pytest.mark.parametrize("tests", [ADDS, DOUBLES, CHECKS], ids=["stdin", "calls", "assertions"])
def test_without_a_program_that_compiles_nothing_runs(tests):
    for program in (None, "x = = 1", "\0", "\ud800", "def f(:\n"):
        found = grade(program, tests)
        assert (found.compiled, found.passed, found.all_passed) == (False, (), False)


def test_functions_and_methods_are_called_with_plain_arguments():
    assert grade("def double(x):\n    return x * 2 if not isinstance(x, list) else x + x", DOUBLES).all_passed
    assert grade("class Solution:\n    def double(self, x):\n        return x + x", DOUBLES).all_passed
    assert grade("double = lambda x: (x, x)[0] + x if x != [1] else (1, 1)", DOUBLES).all_passed, "a tuple is a list"
    assert grade("def double(x):\n    return x if x == 1 else x + x", DOUBLES).passed == (False, True, True)
    assert grade("def other(x):\n    return 2", DOUBLES).why == '{"raised": "NameError"}'


def test_a_function_that_dies_fails_its_case_and_the_next_one_is_served():
    program = "import os\ndef double(x):\n    if x == [1]:\n        os._exit(0)\n    return x + x"
    assert grade(program, DOUBLES).passed == (True, False, True)


def test_a_function_out_of_time_fails_and_all_stop_when_the_time_is_spent():
    slow = "def double(x):\n    while True:\n        pass"
    found = grade(slow, HiddenTests(DOUBLES.cases * 100, "double"), seconds=0.3, total_seconds=0.5)
    assert (len(found.passed), found.fraction) == (300, 0)


def test_starting_a_program_again_uses_up_its_time(monkeypatch):
    load, loaded = code._Grading._load, []

    async def slowly(self):
        loaded.append(self.left)
        await asyncio.sleep(0.2)
        return await load(self)

    monkeypatch.setattr(code._Grading, "_load", slowly)
    program = "import os\ndef double(x):\n    os._exit(0)"
    assert len(grade(program, HiddenTests(DOUBLES.cases * 20, "double"), total_seconds=0.5).passed) == 60
    assert len(loaded) <= 4


def test_assertions_call_the_program_across_sessions():
    assert grade("def scale(x, by=2):\n    return x * by", CHECKS).all_passed
    found = grade("def scale(x, by=2):\n    return x * by + 1", CHECKS)
    assert (found.passed, found.why) == ((False,), "AssertionError: ")


def test_what_a_program_raises_is_raised_in_the_test():
    tests = HiddenTests(code="try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False", function="f")
    assert grade("def f(x):\n    return {}[x]", tests).all_passed
    assert not grade("def f(x):\n    return [][x]", tests).all_passed
    assert not grade("def f(x):\n    return x", tests).all_passed


def test_no_exception_of_a_program_ends_the_tests_own_iteration():
    iterating = (
        "assert all(map(lambda x: f(x) == x + 1, range(3)))",
        "for found, wanted in zip(map(f, [1, 2]), [2, 3]):\n    assert found == wanted",
    )
    assert grade("def f(x):\n    return x + 1", HiddenTests(code="\n".join(iterating), function="f")).all_passed
    for one in iterating:
        assert not grade("def f(x):\n    raise StopIteration", HiddenTests(code=one, function="f")).all_passed


def test_a_function_may_be_called_check():
    tests = HiddenTests(code="assert check(2) == 4", function="check")
    assert grade("def check(x):\n    return x + x", tests).all_passed
    assert not grade("def check(x):\n    return x", tests).all_passed


def test_tests_that_fail_before_they_ask_are_broken_and_not_the_programs_fault():
    for wrong in ("import nothing_of_that_name", "def check(", "import os; os._exit(0)", "assert False", "x = 1"):
        with pytest.raises(Broken, match="as far as a call"):
            grade("def f(): ...", HiddenTests(code=wrong, function="f"))


def test_a_sandbox_that_fails_is_broken(monkeypatch):
    async def gone(*_, **__):
        raise Broken("the sandbox is gone")

    monkeypatch.setattr(BareSession, "arun", gone)
    for tests in (DOUBLES, CHECKS):
        with pytest.raises(Broken):
            grade("def f(): ...", tests)


def test_printed_text_is_compared_but_for_blanks_at_line_ends_and_empty_lines_at_the_end():
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert same_output("1\r\n2", "1\n2")
    assert not same_output("1  2", "1 2")
    assert not same_output("1\n\n2", "1\n2")
    assert not same_output(" 1", "1")
    assert not same_output("", "1")


def test_numbers_may_be_off_by_the_tolerance_alone():
    assert not same_output("0.3333", "0.3334")
    assert same_output("x 0.3333", "x 0.33331", tolerance=1e-4)
    assert not same_output("nan inf", "1 2", tolerance=1e9)
    assert not same_output("y 1", "x 1", tolerance=1.0)
    assert same_value([1.0, [2.0000001]], [1, [2]], tolerance=1e-6)
    assert not same_value([1.0, [2.0000001]], [1, [2]])
    assert not same_value([1], [1, 2])
