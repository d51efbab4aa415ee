"""An environment that is a package of its own; `pyproject.toml` beside it registers it."""

import re

from palaestra.envs import Task, ToolEnv, tool
from palaestra.envs.suite.calculator import safe_eval
from palaestra.formats import ParsedCall, hermes


class Multiplication(ToolEnv):
    """Multiply two numbers with a calculator."""

    max_turns = 4

    def task(self, rng):
        a, b = rng.integers(100, size=2)
        return Task(prompt=f"What is {a} * {b}? Answer with the number alone.", answer=str(a * b))

    @tool
    def calculator(self, expression: str) -> str:
        "Evaluate an arithmetic expression."
        return str(safe_eval(expression))

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.answer)


def demonstrate(messages, rng, tool_rate=1.0):
    """Call the calculator, then answer with its result; without it, guess."""
    last = messages[-1]
    if last["role"] == "tool":
        return last["content"]
    if rng.random() < tool_rate:
        expression = re.search(r"\d+ \* \d+", last["content"])[0]
        return hermes.render([ParsedCall("calculator", {"expression": expression})])
    return str(rng.integers(9_802))
