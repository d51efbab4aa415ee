"""A demonstrator that does not know how to play a task says so, and is not taken for one that plays badly."""

import re

import numpy as np
import pytest

import palaestra
from palaestra import Task, UnknownTask
from palaestra.envs import ToolEnv
from palaestra.envs.checks.check import CHECKS, check
from palaestra.envs.checks.findings import measure
from palaestra.envs.checks.trials import Subject

SUITE = ("Arithmetic", "CodeMath", "CodeContest", "DataTable", "Reasoning", "Science", "TwoHop", "WebNav", "WebShop")


@pytest.mark.parametrize("name", SUITE)
@pytest.mark.parametrize("tool_rate", [0.0, 1.0])
def test_each_demonstrator_of_the_suite_says_what_it_does_not_know(name, tool_rate):
    asked = [{"role": "user", "content": "Who may sit\nat the round table?"}]
    with pytest.raises(UnknownTask, match="Who may sit at the round table"):
        palaestra.demonstrator(f"palaestra/{name}-v0")(asked, np.random.default_rng(0), tool_rate)


class Sums(ToolEnv):
    """Asks for sums, and in some share of the tasks for what no rule knows."""

    def __init__(self, share=0.0, right=1, **kwargs):
        super().__init__(**kwargs)
        self.share, self.right = share, right

    def task(self, rng):
        number = int(rng.integers(10**6))
        asked = f"In which year did king {number} die?" if rng.random() < self.share else f"What is {number} + 1?"
        return Task(asked, str(number + self.right))

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


def demonstrate(messages, rng, tool_rate=1.0):
    question = next(message["content"] for message in messages if message["role"] == "user")
    found = re.fullmatch(r"What is (\d+) \+ 1\?", question)
    if found is None:
        raise UnknownTask(question)
    return str(int(found[1]) + 1)


def demonstrated(**options):
    palaestra.register("test/Sums-v0", f"{__name__}:Sums", demonstrator=f"{__name__}:demonstrate", **options)
    return measure({"demonstrator succeeds": CHECKS["demonstrator succeeds"]}, Subject("test/Sums-v0"))[0]


def test_check_measures_a_demonstrator_by_the_tasks_that_it_knows_or_says_that_it_knows_none():
    none = demonstrated(share=1.0)
    assert none.skipped
    assert "does not know these tasks" in none.message
    assert all(one.passed for one in check("test/Sums-v0"))
    some, wrong = demonstrated(share=0.5), demonstrated(share=0.5, right=2)
    assert (some.passed, some.skipped, wrong.passed) == (True, False, False)
    assert "succeeds in 0%" in wrong.message
