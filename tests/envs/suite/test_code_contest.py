"""CodeContest: hidden tests of generated families and of published files, and the reward of arXiv 2510.11701."""

import base64
import json
import pickle
import zlib

import gymnasium
import numpy as np
import pytest
from checked import success

import palaestra
from palaestra.envs.core.tasks import split_of
from palaestra.envs.records.rescore import find_scorer
from palaestra.envs.rewards.code_checker import same_output, same_value
from palaestra.envs.rewards.code_tests import read_tests
from palaestra.envs.suite import code_contest, program_problems
from palaestra.errors import TaskFileError, UsageError

ID = "palaestra/CodeContest-v0"
pytestmark = pytest.mark.usefixtures("bare")


def played(action, index=0, **options):
    env = gymnasium.make(ID, **options).unwrapped
    env.reset(seed=0, options={"task": index})
    _, reward, _, _, info = env.step(action)
    return reward, info


def test_the_demonstrator_solves_it_and_no_guess_does():
    assert success(ID, palaestra.demonstrator(ID), 4) == 1.0
    assert success(ID, lambda messages, rng: code_contest.demonstrate(messages, rng, tool_rate=0.0), 4) == 0.0


def test_the_reward_doubled_and_lowered_by_one_is_that_of_the_paper():
    env = gymnasium.make(ID).unwrapped
    index = next(at for at in range(20) if not read_tests(env.tasks[at].data).function)
    first = read_tests(env.tasks[index].data).cases[0].accepted[0]
    program = "```python\n{}\n```"
    for answer, share in (("no program", -1), (program.format("x = = 1"), -1), (program.format("pass"), 0)):
        reward, info = played(answer, index)
        assert 2 * reward - 1 == pytest.approx(share)
    reward, info = played(program.format(f"print({first!r})"), index)
    assert 2 * reward - 1 == pytest.approx(info["parts"]["passed"])
    assert 0.1 <= info["parts"]["passed"] <= 0.5
    assert info["parts"]["success"] == 0


def test_what_the_agent_sees_decides_its_split_and_is_one_problem():
    rng = np.random.default_rng(0)
    tasks = [program_problems.contest_task(rng) for _ in range(300)]
    known = {}
    for task in tasks:
        key = (task.data["family"], *next(filter(None, (f.numbers_of(task.prompt) for f in program_problems.FAMILIES))))
        assert known.setdefault(key, task.prompt) == task.prompt
    assert 0.1 < np.mean([split_of(task.prompt) == "eval" for task in tasks]) < 0.3
    assert {bool(read_tests(task.data).function) for task in tasks} == {True, False}


def test_hidden_tests_are_not_in_the_prompt_and_differ_from_one_another():
    rng = np.random.default_rng(1)
    for _ in range(50):
        task = program_problems.contest_task(rng)
        cases = read_tests(task.data).cases
        assert len(cases) == program_problems.HIDDEN_CASES
        assert len({str(case.input) for case in cases}) == len(cases)
        assert not any(str(case.input).strip("[]") in task.prompt for case in cases if len(str(case.input)) > 8)


def passes(tests, constant):
    """The share of hidden cases that a program passes whose output is always this one."""
    same = same_value if tests.function else same_output
    return np.mean([any(same(constant, one) for one in case.accepted) for case in tests.cases])


@pytest.mark.parametrize("family", program_problems.FAMILIES, ids=lambda one: one.name)
def test_no_constant_output_earns_more_than_the_declared_ceiling_in_any_family(family, monkeypatch):
    """Each value that a hidden case of its problems expects, printed or returned whatever comes."""
    monkeypatch.setattr(program_problems, "FAMILIES", (family,))
    rng = np.random.default_rng(2)
    problems = [read_tests(program_problems.contest_task(rng).data) for _ in range(24)]
    for function in ("", program_problems.NAME):
        alike = [tests for tests in problems if tests.function == function]
        expected = [one for tests in alike for case in tests.cases for one in case.accepted]
        constants = [one for at, one in enumerate(expected) if one not in expected[:at]]
        assert len(alike) > 5 and len(constants) >= 10
        for tests in alike:
            best = max(passes(tests, one) for one in ("", 0, "0", *constants) if function or isinstance(one, str))
            assert 0.5 + 0.5 * best <= code_contest.CodeContest.ceiling


def test_numbers_under_which_every_output_is_the_same_are_drawn_again():
    letters = next(one for one in program_problems.FAMILIES if one.name == "letters")

    class Drawn:
        """Draws these in turn: 17 times a place, without a remainder on division by 17; then 5."""

        numbers = iter(
            [program_problems.FAMILIES.index(letters), 17, 1, program_problems.FAMILIES.index(letters), 5, 1]
        )

        def integers(self, *_):
            return next(self.numbers)

    assert program_problems.draw(Drawn())[:3] == (letters, 5, 1)


def test_a_program_that_prints_a_constant_is_paid_the_ceiling_at_most():
    env = gymnasium.make(ID).unwrapped
    index = next(at for at in range(200) if env.tasks[at].data["family"] == "pairs"
                 and not read_tests(env.tasks[at].data).function)  # fmt: skip
    for constant in ("0", *(case.accepted[0] for case in read_tests(env.tasks[index].data).cases[:2])):
        reward, info = played(f"```python\nprint({constant})\n```", index)
        assert reward <= env.author.ceiling and info["parts"]["passed"] <= 0.1


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


FILES = {
    "livecodebench stdin": (
        {
            "question_content": "Add two numbers.", "question_id": "a", "starter_code": "",
            "public_test_cases": json.dumps([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
            "private_test_cases": packed([{"input": "4 5", "output": "9", "testtype": "stdin"}]), "metadata": "{}",
        },
        "print(sum(map(int, input().split())))",
    ),
    "livecodebench function": (
        {
            "question_content": "Add two numbers.", "question_id": "b",
            "starter_code": "class Solution:\n    def add(self, x: int, y: List[int]) -> int:\n        ",
            "public_test_cases": json.dumps([{"input": "1\n[2]", "output": "3", "testtype": "functional"}]),
            "private_test_cases": packed([{"input": "4\n[5]", "output": "9", "testtype": "functional"}]),
            "metadata": json.dumps({"func_name": "add"}),
        },
        "class Solution:\n    def add(self, x: int, y: List[int]) -> int:\n        return x + sum(y)",
    ),
    "apps": (
        {"problem_id": 7, "question": "Add two.", "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3\n"]})},
        "print(sum(map(int, input().split())))",
    ),
    "skywork": (
        {
            "prompt": [{"role": "user", "content": "Add two."}],
            "reward_model": {"ground_truth": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]})},
        },
        "def add(x, y):\n    return x + y",
    ),
    "primeintellect": (
        {
            "prompt": "Add two.",
            "verification_info": json.dumps({"test_cases": [{"type": "stdin_stdout", "input": "1 2", "output": "3"}]}),
        },
        "print(sum(map(int, input().split())))",
    ),
    "deepcoder": (
        {"problem": "Add two.", "tests": json.dumps([{"type": "stdin_stdout", "input": "1 2", "output": "3"}])},
        "print(sum(map(int, input().split())))",
    ),
    "mbpp full": (
        {
            "task_id": 3, "text": "Write a function to add up two.", "code": "def add(x, y): return x + y",
            "test_setup_code": "two = 2", "test_list": ["assert add(1, two) == 3"], "challenge_test_list": [],
        },
        "def add(x, y):\n    return x + y",
    ),
    "mbpp": ({"prompt": "Add two.", "test_list": ["assert add(1, 2) == 3"]}, "def add(x, y):\n    return x + y"),
}  # fmt: skip


@pytest.mark.parametrize(("row", "solution"), FILES.values(), ids=FILES)
def test_f27_published_files_are_read_and_judged(row, solution, saved):
    path = saved(row)
    env = gymnasium.make(ID, tasks=path).unwrapped
    question, _ = env.reset(seed=0)
    if row.get("starter_code"):
        assert "def add(self, x: int" in question
    assert "private_test_cases" not in question
    assert "assert" not in question
    assert read_tests(row, row.get("reward_model", {}).get("ground_truth")).function in question
    _, info = played(f"```python\n{solution}\n```", tasks=path)
    assert (info["parts"]["success"], info["fault"]) == (1.0, "")
    assert played("```python\npass\n```", tasks=path)[1]["parts"]["success"] == 0.0


@pytest.mark.parametrize(("row", "asked"), [
    ({"prompt": "Double a thing.", "test_list": ["assert dbl(2) == 4"]}, True),
    ({"prompt": "Double a thing.", "answer": '["assert dbl(2) == 4"]'}, True),
    ({"question": "Double a thing.", "starter_code": "",
      "input_output": '{"fn_name": "dbl", "inputs": [[2]], "outputs": [4]}'}, True),
    ({"prompt": "Write dbl, which doubles.", "test_list": ["assert dbl(2) == 4"]}, True),
    ({"prompt": "Write dbl(x), which doubles.", "test_list": ["assert dbl(2) == 4"]}, False),
    ({"prompt": "Write `dbl`, which doubles.", "test_list": ["assert dbl(2) == 4"]}, False),
    ({"prompt": "Double.", "starter_code": "def dbl(x):", "test_list": ["assert dbl(2) == 4"]}, False),
])  # fmt: skip
def test_the_name_that_tests_call_is_told_and_the_tests_are_not(row, asked, saved):
    question, _ = gymnasium.make(ID, tasks=saved(row)).unwrapped.reset(seed=0)
    assert ("Define a function `dbl` of 1 argument." in question) == asked
    assert "4" not in question


@pytest.mark.parametrize("imports", [[], ["import re"]])
def test_a_program_may_use_what_contest_sites_import_whatever_its_tests_import(imports, saved):
    row = {"prompt": "First.", "test_list": ["assert r([9]) == 9"], "test_imports": imports}
    program = "```python\ndef r(x: List[int]) -> int:\n    return x[0]\n```"
    assert played(program, tasks=saved(row))[0] == 1.0


def test_what_contest_sites_import_solves_no_problem(saved):
    calls = {"input_output": {"fn_name": "gcd", "inputs": [[4, 6]], "outputs": [2]}}
    for tests in ({"test_list": ["assert gcd(4, 6) == 2"]}, calls):
        path = saved({"prompt": "Find the divisor.", **tests})
        assert played("```python\npass\n```", tasks=path)[1]["parts"]["success"] == 0
        assert played("```python\ngcd = lambda a, b: math.gcd(a, b)\n```", tasks=path)[1]["parts"]["success"] == 1


def test_tests_that_cannot_be_read_are_named_when_the_file_is_read(saved):
    evil = base64.b64encode(zlib.compress(pickle.dumps(["not a text"]))).decode()
    path = saved({"question_content": "Add.", "private_test_cases": evil})
    with pytest.raises(TaskFileError, match="nothing else is opened"):
        _ = gymnasium.make(ID, tasks=path).unwrapped.tasks


def test_a_recorded_attempt_is_rescored_to_the_same():
    env = gymnasium.make(ID).unwrapped
    env.reset(seed=0, options={"task": 1})
    stdin = not read_tests(env.problem.data).function
    solution, _ = program_problems.solution_for(env.problem.prompt, as_program=stdin)
    _, reward, _, _, info = env.step(f"```python\n{solution}\n```")
    again, parts = find_scorer(ID)(info["attempt"])
    assert (again, parts) == (reward, info["parts"])
    assert reward == 1.0


@pytest.mark.parametrize("options", [
    *({"seconds": value} for value in ("abc", float("nan"), float("inf"), -1, 0, True, 60)),
    *({"tolerance": value} for value in ("abc", float("nan"), float("inf"), -1, None)),
], ids=str)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused_as_it_is_given(options):
    with pytest.raises(UsageError, match=f"{next(iter(options))} is "):
        gymnasium.make(ID, **options)
