"""Programming problems: a program that reads stdin, or a function, judged by hidden tests.

A task:      Add up the numbers that are divisible by 7 or greater than 4. ... Print one number. ...
An episode:  <tool_call>{"name": "python", "arguments": {"code": "def solve(numbers): ..."}}</tool_call>
             12
             ```python
             def solve(numbers): ...
             ```

`tasks=FILE` takes LiveCodeBench, APPS, MBPP, PrimeIntellect and files whose answer column holds the tests. If tests
call a function that neither the question nor the starter code names, its name is added to the question. The reward is
0.5 for a program that compiles, plus 0.5 times the share of tests passed. The trainer uses 2 * reward - 1, which is the
reward in the released code of arXiv 2510.11701: -1 without a program, otherwise the share of tests passed. `success`
means that all tests pass.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.data.problem_files import load_problems
from palaestra.envs.rewards.code import Allowance, Grade, grade_program
from palaestra.envs.rewards.code_block import program_of
from palaestra.envs.rewards.code_tests import read_tests
from palaestra.envs.suite import program_problems
from palaestra.envs.suite.demonstrations import call, question_of, replies_of
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt, Message
from palaestra.errors import UnknownTask, UsageError

QUESTIONS = ("question_content", "question", "description", "text", "problem")
"""Columns that hold the statement in files without a `prompt`."""
PRELUDE = (
    "import bisect, collections, functools, heapq, itertools, math, re, string\n"
    "from bisect import *\nfrom collections import *\nfrom functools import *\nfrom heapq import *\n"
    "from itertools import *\nfrom math import *\nfrom typing import *\nfrom builtins import *\n"
)
"""Imports that starter code of contest sites assumes. They run before functions that are called."""


class CodeContest(ToolEnv):
    """Write a program that passes hidden tests."""

    max_turns = 16
    system = (
        "Write Python that solves the problem. You may try it with the Python tool first. Then answer with the whole "
        "program in one ```python block: it reads stdin and prints, or, where a function is asked for, defines it."
    )
    parts = {"success": RewardPart(weight=0.0), "compiles": RewardPart(weight=0.5), "passed": RewardPart(weight=0.5)}  # noqa: RUF012
    ceiling = 0.55  # Paid to a program that prints what one of ten hidden cases expects, whatever it reads.
    deadlines = {"reward": 600.0}  # noqa: RUF012

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        seconds: float = 6.0,
        tolerance: float = 0.0,
        sandbox: Where = "local",
    ) -> None:
        """`seconds` of the processor is what a test may take (ten times as much all of them), `tolerance` how far
        numbers may be off. `sandbox` is where programs run.
        """
        super().__init__(split, tasks)
        seconds, tolerance = _number("seconds", seconds), _number("tolerance", tolerance)
        cap = self.deadlines["reward"] / 40  # By the clock all tests may take PATIENCE times ten times as long.
        if not 0 < seconds <= cap:
            raise UsageError(f"seconds is {seconds:g}; expected more than 0 and at most {cap:g}, so that grading ends")
        self.allowance = Allowance(seconds, 10 * seconds, tolerance)
        self.sandbox = sandbox
        self.toolkits = in_sandbox(sandbox, Python)

    def read_tasks(self, path: str, split: str) -> Sequence[Task]:
        """Read the problems of a file; it may have the columns of a published data set."""
        return load_problems(path, split, QUESTIONS, with_tests)

    def task(self, rng: np.random.Generator) -> Task:
        return program_problems.contest_task(rng)

    async def reward(self, attempt: Attempt) -> dict[str, float]:
        """Run the tests and return the scores. If the answer has no program, nothing runs."""
        return scored(await graded(attempt, self.allowance, self.sandbox))

    async def explain(self, attempt: Attempt) -> str:
        """Run the tests again, and return a text about the first test that fails."""
        return (await graded(attempt, self.allowance, self.sandbox)).why


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UsageError(f"{name} is {value!r}; expected a number that is not negative")
    return float(value)


async def graded(attempt: Attempt, allowance: Allowance, sandbox: Where) -> Grade:
    """Run the tests of a task on the program of an attempt, and return the grade."""
    program = program_of(attempt.answer)
    if program is None:
        return Grade(why="there is no program")
    task = attempt.task
    tests = await asyncio.to_thread(read_tests, task.data, task.answer, task.prompt)  # Some are megabytes, packed.
    if tests.function and not task.data.get("context"):  # HumanEval's own brings the imports it wants.
        tests = replace(tests, context=PRELUDE + tests.context)
    return await grade_program(program, tests, allowance=allowance, sandbox=sandbox)


def scored(grade: Grade) -> dict[str, float]:
    """Return a grade as parts of a reward."""
    return {"success": grade.all_passed, "compiles": grade.compiled, "passed": grade.fraction}


def with_tests(task: Task) -> Task:
    """Check that the tests can be read. Return the task with its starter code or the function's name in the prompt."""
    tests = read_tests(task.data, task.answer, task.prompt)
    starter: Any = task.data.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        task = replace(task, prompt=f"{task.prompt}\n\nBegin with this code:\n```python\n{starter.rstrip()}\n```")
    if tests.function and not re.search(rf"\b{re.escape(tests.function)}(?=[`(])", task.prompt):
        task = replace(task, prompt=f"{task.prompt}\n\n{tests.request()}")
    return task


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: try the solution, then submit it. With probability 1 - tool_rate, submit a wrong one at once."""
    question, tried = question_of(messages), bool(replies_of(messages))
    function = program_problems.solution_for(question, as_program=False)
    if function is None:
        raise UnknownTask(question)
    if not tried and rng.random() >= tool_rate:
        return f"```python\nprint({rng.integers(100)})\n```"
    if not tried:
        return call("python", code=f"{function[0]}\nprint({function[1]})")
    reads = "Write a function" not in question and not question.startswith("def ")
    solution = program_problems.solution_for(question, as_program=reads) or function
    return f"```python\n{solution[0]}```"
