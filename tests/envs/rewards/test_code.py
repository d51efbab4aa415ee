"""Grading programs by hidden tests, over a sandbox without walls; attacks are in tests/prove/test_grader_attacks.py."""

import asyncio
import json
import re
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from bare_sandbox import BareSandbox, BareSession

from palaestra.envs.rewards import code
from palaestra.envs.rewards.code import Allowance, Grade, grade_program
from palaestra.envs.rewards.code_block import program_of
from palaestra.envs.rewards.code_checker import MAX_SHOWN_CHARS, called, replied
from palaestra.envs.rewards.code_tests import Case, HiddenTests, read_tests
from palaestra.errors import Broken, UsageError

ADDS = HiddenTests((Case("1 2\n", ("3\n",)), Case("4 5\n", ("9",)), Case("0 0", ("0",))))
DOUBLES = HiddenTests((Case([1], (2,)), Case([[1]], ([1, 1],)), Case(["ab"], ("abab",))), function="double")
CHECKS = HiddenTests(
    code="def check(candidate):\n    assert candidate(2, by=3) == 6\n    assert offset(candidate(1)) == 3",
    function="scale",
    context="def offset(x):\n    return x + 1\n",
)


@pytest.fixture(autouse=True)
def sandbox(monkeypatch):
    monkeypatch.setattr(code.SANDBOXES, "shared", lambda *_, **__: BareSandbox())


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
    begun = time.thread_time()
    for opened in ("```x\n", "```\n~~~\n", "~~~~\n````\n", "`", " ```\n"):
        program_of(opened * 20_000)
    assert program_of("```x\n" * 20_000 + "```\n```python\na\n```") == "a\n"
    assert time.thread_time() - begun < 5


def test_a_program_is_run_once_a_case_and_what_it_prints_is_compared():
    assert grade("print(sum(map(int, input().split())))", ADDS) == Grade(True, (True, True, True))
    some = grade("print(3)", ADDS)
    assert (some.passed, some.fraction, some.all_passed) == ((True, False, False), 1 / 3, False)
    assert grade("print(3)\nraise SystemExit(1)", ADDS).fraction == 0, "it fails after printing"


@pytest.mark.parametrize("tests", [ADDS, DOUBLES, CHECKS], ids=["stdin", "calls", "assertions"])
def test_f13_without_a_program_that_compiles_nothing_runs(tests):
    for program in (None, "x = = 1", "\0", "\ud800", "def f(:\n"):
        found = grade(program, tests)
        assert (found.compiled, found.passed, found.all_passed) == (False, (), False)


def test_functions_and_methods_are_called_with_plain_arguments():
    assert grade("def double(x):\n    return x + x", DOUBLES) == Grade(True, (True, True, True))
    assert grade("class Solution:\n    def double(self, x):\n        return x + x", DOUBLES).all_passed
    assert grade("double = lambda x: (x, x)[0] + x if x != [1] else (1, 1)", DOUBLES).all_passed, "a tuple is a list"
    assert grade("def double(x):\n    return x if x == 1 else x + x", DOUBLES).passed == (False, True, True)
    assert grade("def other(x):\n    return 2", DOUBLES).fraction == 0


def test_a_function_that_dies_fails_its_case_and_the_next_one_is_served():
    program = "import os\ndef double(x):\n    if x == [1]:\n        os._exit(0)\n    return x + x"
    assert grade(program, DOUBLES).passed == (True, False, True)


@pytest.mark.parametrize("tests", [ADDS, DOUBLES, CHECKS], ids=["stdin", "calls", "assertions"])
def test_time_is_that_of_the_processor_so_that_a_busy_machine_makes_no_program_wrong(tests, monkeypatch):
    run, cost, waited = BareSession._run, {"duration_s": 15.0}, []

    async def costly(session, asked, blocking):
        waited.append(asked.timeout)
        return replace(await run(session, asked._replace(timeout=60.0), blocking), **cost)

    monkeypatch.setattr(BareSession, "_run", costly)
    program = "def scale(x, by=2):\n    return x * by\ndouble = lambda x: x + x\n"
    program += "try: print(sum(map(int, input().split())))\nexcept Exception: pass"
    assert grade(program, tests, seconds=5.0).all_passed
    assert 15.0 in waited
    cost["cpu_s"] = 5.1
    assert not any(grade(program, tests, seconds=5.0).passed)


def test_starting_a_program_again_uses_up_its_time(monkeypatch):
    load, loaded = code._Grading._load, []

    async def slowly(self):
        loaded.append(self.left)
        await asyncio.sleep(0.2)
        return await load(self)

    monkeypatch.setattr(code._Grading, "_load", slowly)
    program = "import os\ndef double(x):\n    os._exit(0)"
    assert len(grade(program, HiddenTests(DOUBLES.cases * 20, "double"), total_seconds=0.2).passed) == 60
    assert len(loaded) <= 4


def test_assertions_call_the_program_across_sessions():
    assert grade("def scale(x, by=2):\n    return x * by", CHECKS) == Grade(True, (True,))
    assert grade("def scale(x, by=2):\n    return x * by + 1", CHECKS).passed == (False,)


def test_what_a_program_raises_is_raised_in_the_test():
    tests = HiddenTests(code="try:\n    f(1)\nexcept KeyError:\n    pass\nelse:\n    assert False", function="f")
    assert grade("def f(x):\n    return {}[x]", tests).all_passed
    assert not grade("def f(x):\n    return [][x]", tests).all_passed
    assert not grade("def f(x):\n    return x", tests).all_passed
    odd = "class Odd(KeyError):\n    def __str__(self):\n        raise RuntimeError\nOdd.__name__ = 'KeyError'\n"
    assert grade(odd + "def f(x):\n    raise Odd", tests).all_passed, "though its words raise"


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


def test_only_a_program_and_tests_are_graded():
    for program, tests in ((5, ADDS), ("x", None), (b"x", ADDS), ("x", {"inputs": []})):
        with pytest.raises(UsageError, match="expected text or None"):
            grade(program, tests)


def asserted(*lines, **columns):
    return read_tests({"test_list": list(lines), **columns})


@pytest.mark.parametrize(("program", "lines"), [
    ("def f(x):\n    return map(lambda y: y + 1, x)", ["assert list(f([1])) == [2]"]),
    ("def f(x):\n    yield from x", ["assert sorted(f([2, 1])) == [1, 2]", "assert next(f([5])) == 5"]),
    ("from fractions import Fraction as F\ndef f(x):\n    return F(x, 2)", ["assert f(3) == 1.5", "assert f(2) == 1"]),
    ("from decimal import Decimal as D\ndef f(x):\n    return D(x) / 2", ["assert str(f('3')) == '1.5'"]),
    ("def f(x):\n    return x.replace(year=2000)", ["import datetime as d", "assert f(d.date(1, 2, 3)).year == 2000"]),
    ("def f(x, kind):\n    return [one for one in x if type(one) is kind]", ["assert f([1, 'a'], int) == [1]"]),
    ("def f(x):\n    return sum(x)", ["assert f(map(int, '12')) == 3", "assert f(range(3)) == 3"]),
])  # fmt: skip
def test_iterators_and_exact_numbers_cross(program, lines):
    assert grade(program, asserted(*lines)).all_passed, grade(program, asserted(*lines)).why


TREE = (
    "class Node:\n    def __init__(self, x, left=None):\n        self.x, self.left = x, left\nroot = Node(3, Node(4))"
)


def test_objects_that_a_set_up_makes_reach_the_program_and_come_back():
    tests = asserted("assert total(root) == 7", test_setup_code=TREE)
    own = "class Node:\n    pass\n"
    total = "def total(node):\n    return node.x + total(node.left) if isinstance(node, Node) else 0"
    assert grade(total, tests).all_passed
    assert grade(own + total, tests).all_passed
    assert grade("def total(node):\n    return node.x", tests).passed == (False,)
    tests = asserted("assert grown(root).left.x == 3", "assert isinstance(grown(root), Node)", test_setup_code=TREE)
    assert grade("def grown(node):\n    return Node(1, node)", tests).all_passed
    assert not grade("def grown(node):\n    return object()", tests).all_passed


ANSWERS = "def known(x):\n    return x * 7\nclass Pair:\n    def __init__(self, a):\n        self.a = a\n"
TAKEN = "def f(x):\n    return [one(x) for one in globals().values() if type(one) is type(f) and one is not f][0]"


@pytest.mark.parametrize("where", ["test_setup_code", "test_imports"])
def test_a_reference_solution_in_a_set_up_is_not_handed_to_the_program(where):
    tests = asserted("assert f(6) == known(6)", **{where: ANSWERS})
    assert not grade(TAKEN, tests).all_passed
    assert grade("def f(x):\n    return Pair(x).a * 7", tests).all_passed
    check = "def check(candidate):\n    assert candidate(6) == known(6)"
    whole = {"test": check, "entry_point": "f", "context": ANSWERS}
    assert not grade(TAKEN, read_tests(whole)).all_passed
    shown = read_tests(whole, prompt=ANSWERS)
    assert grade("def f(x):\n    return known(x)", shown).all_passed, "the agent was shown it"


def test_an_object_that_comes_back_is_of_no_class_of_the_tests_own():
    agrees = "class Agrees:\n    def __eq__(self, other):\n        return True\n"
    tests = HiddenTests(code=f"{agrees}assert f(1) == 5", function="f", context="class Shared:\n    pass\n")
    claimed = "class Agrees:\n    pass\nAgrees.__module__ = 'solution'\ndef f(x):\n    return Agrees()"
    assert not grade(claimed, tests).all_passed


COMPARED = """
import numpy as np
def fails(text):
    try: return (value := eval(text)) is not None and not np.all(value)
    except AssertionError: return True
guard_numpy()
for empty in ("np.zeros((0, 3))", "np.array([])", "[]"):
    for other in ("5.0", "[5.0]", "[[1, 2, 3]]"):
        for name in ("np.allclose", "np.array_equiv", "np.isclose", "np.testing.assert_allclose",
                     "np.testing.assert_equal", "np.testing.assert_array_almost_equal", "np.testing.assert_array_less"):
            assert fails(f"{name}({empty}, {other})"), (name, other)
            assert fails(f"{name}({other}, {empty})"), (name, other)
assert np.allclose([], np.array([])) and np.allclose(b=[5.0], a=5) and not np.allclose(a=[], b=5)
np.testing.assert_equal([[1], [2, 3]], [[1], [2, 3]])
np.testing.assert_allclose([], [])
np.testing.assert_raises(AssertionError, np.testing.assert_equal, [], 5)
"""


def test_an_empty_array_is_close_to_nothing_but_another_one(monkeypatch):
    found = subprocess.run([sys.executable, "-c", code._HARNESS + COMPARED], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    monkeypatch.setattr("bare_sandbox.LIBRARIES", True)
    tests = asserted("from numpy import allclose", "assert allclose(f(1), 5.0)")
    assert grade("def f(x):\n    return 5.0", tests).all_passed
    assert not grade("def f(x):\n    return []", tests).all_passed


def test_integers_of_thousands_of_digits_are_answers_as_any_other():
    column = f'{{"fn_name": "f", "inputs": [[5000], [4]], "outputs": [{"1" * 5000}, 1111]}}'
    tests = read_tests({"input_output": column})
    assert grade("def f(n):\n    return 10**n // 9", tests).all_passed
    assert grade("def f(n):\n    return 10**n // 9 + (n > 9)", tests).passed == (False, True)
    assert grade("def f(n):\n    return n // 9", asserted("assert f(10**5000) == 10**5000 // 9")).all_passed


def test_tests_that_first_hand_over_what_cannot_be_sent_are_broken():
    with pytest.raises(Broken, match="cannot be sent to the program"):
        grade("def f(x):\n    return 1", asserted("import operator", "assert f(operator.add) == 1"))


def told(*lines):
    return "\n".join(lines)


@pytest.mark.parametrize(("program", "tests", "why"), [
    ("print(3)", ADDS, told(
        "hidden test 2 of 3 failed", r"  given     '4 5\n'", "  expected  '9'", r"  got       '3\n'")),
    ("print(1 // int(input()[0]) or 9)", ADDS, told(
        "hidden test 1 of 3 failed", r"  given     '1 2\n'", r"  expected  '3\n'", r"  got       '1\n'")),
    ("print('x')\n1 / 0", ADDS, told(
        "hidden test 1 of 3 failed: ZeroDivisionError: division by zero",
        r"  given     '1 2\n'", r"  expected  '3\n'", r"  got       'x\n'")),
    ("def double(x):\n    return x + x if x == 1 else (x,)", DOUBLES, told(
        "hidden test 2 of 3 failed", "  given     double([1])", "  expected  [1, 1]", "  got       ([1],)")),
    ("def double(x):\n    raise ValueError(f'no {x}')", DOUBLES, told(
        "hidden test 1 of 3 failed", "  given     double(1)", "  expected  2", "  got       raised ValueError: no 1")),
    ("import nothere", DOUBLES, told(
        "hidden test 1 of 3 failed", "  loading   ModuleNotFoundError: No module named 'nothere'",
        "  given     double(1)", "  expected  2", "  got       raised NameError: double")),
    ("def scale(x, by=2):\n    return x * 2 + by - 1", CHECKS, told(
        "a hidden test failed: AssertionError", "  test      assert offset(candidate(1)) == 3",
        "  given     scale(1)", "  got       3")),
    ("def scale(x, by=2):\n    return {}[x]", CHECKS, told(
        "a hidden test failed: KeyError: 'raised by the program'", "  test      assert candidate(2, by=3) == 6",
        "  given     scale(2, by=3)", "  got       raised KeyError: 2")),
    ("def scale(x, by=2):\n    import os; os._exit(1)", CHECKS, None), ("import os; os._exit(1)", DOUBLES, None),
    ("x = = 1", ADDS, "the program does not compile: SyntaxError: invalid syntax"),
    ("x = = 1", DOUBLES, "the program does not compile: SyntaxError: invalid syntax"),
])  # fmt: skip
def test_the_first_test_that_fails_is_told_with_what_it_gave_expected_and_got(program, tests, why):
    found = grade(program, tests).why
    if why is None:  # It died.
        assert "failed: it ended with status" in found
    else:
        assert found == why


@pytest.mark.parametrize(("program", "tests", "step"), [
    ("while True:\n    pass", ADDS, "while True:"),
    ("def double(x):\n    while True:\n        pass", DOUBLES, "program.answer("),
    ("def scale(x, by=2):\n    while True:\n        pass", CHECKS, "program.answer("),
    ("while True:\n    pass", CHECKS, "program.run("),
], ids=["stdin", "calls", "assertions", "as it is loaded"])  # fmt: skip
def test_a_test_out_of_time_is_told_as_such(program, tests, step, monkeypatch):
    run = BareSession._run

    async def patient(session, asked, blocking):  # What has an end is late on a busy machine alone.
        if asked.program.startswith(step):
            return await run(session, asked, blocking)
        return replace(await run(session, asked._replace(timeout=60.0), blocking), duration_s=0.0)

    monkeypatch.setattr(BareSession, "_run", patient)
    why = grade(program, tests, seconds=0.2, total_seconds=0.3).why
    told = [float(seconds) for seconds in re.findall(r"out of time after ([\d.]+) s", why)]
    assert told
    assert min(told) >= 0.2
    assert "given" in why


@pytest.mark.parametrize(("program", "tests"), [
    ("print('\\x1b[2J' * 10**6)", HiddenTests((Case("1" * 10**6, ("2" * 10**6,)),))),
    ("raise ValueError('\\x1b[2J' * 10**6)", ADDS),
    ("def f(x):\n    return '\\x1b[2J' * 10**6", HiddenTests((Case([[1] * 10**5], ([2] * 10**5,)),), function="f")),
    ("def f(x):\n    raise ValueError('\\x1b[2J' * 10**6)", HiddenTests((Case([1], (2,)),), function="f")),
    ("def f(x):\n    return 'x' * 10**6", HiddenTests(code=f"assert f('{'1' * 999}') == 2", function="f")),
], ids=["output", "exception", "value", "raised", "assertion"])  # fmt: skip
def test_what_is_told_of_a_failed_test_is_bounded(program, tests):
    found = grade(program, tests)
    assert found.fraction == 0
    assert 0 < len(found.why) < 5 * MAX_SHOWN_CHARS
    assert "hidden test" in found.why


@pytest.mark.parametrize("reply", [
    "", "5", "[", '"raised"', '["raised"]', '{"raised": 1}', "{}", '{"value": {"$": "complex", "of": []}}',
    '{"value": {"$": "bytes", "of": 1}}', '{"value": {"$": "set", "of": [[1]]}}', '{"value": {"$": 1}}',
    '{"value": ' + "[" * 1400 + "]" * 1400 + "}", '{"value": ' + "9" * 2900 + "}", "9" * 10**6,
])  # fmt: skip
def test_a_reply_that_a_program_forged_is_told_as_it_came(reply):
    assert replied(reply)[:MAX_SHOWN_CHARS] in (reply[:MAX_SHOWN_CHARS], reply[len('{"value": ') :][:MAX_SHOWN_CHARS])
    assert called("f", reply).startswith(reply[:MAX_SHOWN_CHARS])


def test_an_answer_too_long_to_be_read_is_told_as_it_came():
    assert replied(json.dumps({"value": "x" * 400})).startswith("'xxx")
    assert replied(json.dumps({"value": "x" * 4000})).startswith('{"value": "xxx')


def test_long_outputs_are_told_from_the_line_in_which_they_differ():
    wanted = "".join(f"{n}.0 \n" for n in range(1000))
    ran = "for n in range(1000):\n    print(n + 1e-9 if n != {} else 'x')"
    why = grade(ran.format(700), HiddenTests((Case("", (wanted,)),)), tolerance=1e-6).why
    assert "line      701 and the following" in why
    assert "expected  '700.0 \\n701.0" in why
    assert "got       'x\\n701" in why
    assert "line      2 and the following" in grade("print(3)", HiddenTests((Case("", ("3\n4",)),))).why
    assert r"got       '3\n'" in grade("print(3); 1 / 0", HiddenTests((Case("", ("3",)),))).why
