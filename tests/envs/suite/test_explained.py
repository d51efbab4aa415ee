"""What each environment tells a person of a reward."""

import re
from dataclasses import replace

import pytest
from worlds import explained

from palaestra.envs import TextEnv
from palaestra.envs.suite.code_contest import CodeContest
from palaestra.envs.suite.code_math import CodeMath
from palaestra.envs.suite.data_table import DataTable
from palaestra.envs.suite.human_eval import HumanEval
from palaestra.envs.suite.reasoning import Reasoning
from palaestra.envs.suite.science import Science
from palaestra.episode import Attempt, Task

ADDS = Task("Add two.", data={"tests": {"inputs": ["1 2", "4 5"], "outputs": ["3", "9"]}})
ASSERTS = Task("Add two.", data={"entry_point": "add", "test": "def check(f):\n    assert f(1, 2) == 3", "context": ""})


def told(env, task, answer):
    attempt = Attempt(task, (), answer, (), 1)
    return explained(env, attempt)


@pytest.mark.usefixtures("bare")
def test_a_wrong_program_is_told_the_test_that_failed_and_a_right_one_nothing():
    env = CodeContest()
    assert told(env, ADDS, None) == "there is no program"
    assert told(env, ADDS, "```python\nprint(3)\n```").splitlines() == [
        "hidden test 2 of 2 failed", "  given     '4 5'", "  expected  '9'", r"  got       '3\n'",
    ]  # fmt: skip
    endless = told(CodeContest(seconds=0.3), ADDS, "```python\nwhile True: pass\n```")
    (seconds,) = re.findall(r"out of time after ([\d.]+) s", endless)
    assert float(seconds) >= 0.3
    assert told(env, ADDS, "```python\nprint(sum(map(int, input().split())))\n```") == ""
    assert "assert f(1, 2) == 3" in told(HumanEval(), ASSERTS, "```python\ndef add(x, y):\n    return x\n```")
    assert told(HumanEval(), ASSERTS, "```python\ndef add(x, y):\n    return x + y\n```") == ""


@pytest.mark.usefixtures("bare")
def test_what_hidden_tests_expect_is_in_nothing_that_an_episode_hands_out():
    class Marked(CodeContest):
        def task_set(self, split):
            return [Task("Say it.", data={"tests": {"inputs": ["1"], "outputs": ["zqx-8731"]}})]

    env = TextEnv(Marked())
    env.reset(seed=0)
    observation, *_, info = env.step("```python\nprint(1)\n```")
    assert "zqx-8731" in explained(env.author, info["attempt"])
    handed = {**info, "attempt": replace(info["attempt"], task=None)}
    assert "zqx-8731" not in f"{observation}{handed}{env.attempt.messages}"


MATHS = Task("?", "12", data={"family": "any"})
FREE = Task("?", r"\sqrt{8}")


@pytest.mark.parametrize(("env", "task", "answer", "said"), [
    (CodeMath(), MATHS, r"\boxed{1} or \boxed{ 13 }", ["read '13'", "last \\boxed{}", "a number that is written out"]),
    (CodeMath(), MATHS, "13", ["nothing can be read", "last \\boxed{}"]),
    (CodeMath(), FREE, r"\boxed{2\sqrt{2}}", ["math-verify"]), (CodeMath(), FREE, r"\boxed{\sqrt{8}}", ["as text"]),
    (CodeMath(compare="text"), FREE, r"\boxed{ 3}", ["read ' 3'", "to the letter"]),
    (Science(), Task("?", "B", data={"kind": "choice"}), r"\boxed{C}", ["read 'C'", "the right letter"]),
    (Science(), Task("?", "B", data={"kind": "choice"}), "B or C", ["nothing can be read", "two letters are none"]),
    (Science(), Task("?", "the liver", data={"kind": "short"}), r"\boxed{liver}", ["read 'liver'", "as words"]),
    (Science(), Task("?", "5 kJ", data={"kind": "short"}), r"\boxed{5}", ["read '5'", "compared as"]),
    (Reasoning(), Task("?", "x"), "Well: <answer> 7 </answer>.", ["read '7'", "verifier of number_sorting"]),
    (Reasoning(), Task("?", "x"), None, ["nothing can be read"]),
    (DataTable(), Task("?", "Moss"), "Answer: **moss**", ["read 'moss'", "as words"]),
    (DataTable(), Task("?", "12.5"), "Answer: 12", ["read '12'", "as numbers"]),
], ids=str)  # fmt: skip
def test_a_person_is_told_what_was_read_and_how_it_was_compared(env, task, answer, said):
    found = told(env, task, answer)
    assert [one for one in said if one not in found] == [], found
    assert "\n" not in found
