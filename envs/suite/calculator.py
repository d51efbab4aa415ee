"""Multiply two numbers with a calculator: the smallest environment, and the one the documentation shows.

A task:      What is 23 * 41?
An episode:  <tool_call>{"name": "calculator", "arguments": {"expression": "23 * 41"}}</tool_call>
             943
             943
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence

import numpy as np

from palaestra.envs import Task, ToolEnv, ToolError, tool
from palaestra.envs.rewards.stated_number import states_number
from palaestra.envs.suite.demonstrations import call, question_of, replies_of
from palaestra.episode import Attempt, Message

Number = int | float
MAX_LETTERS = 200
MAX_BITS = 256
"""Largest size of a whole number, in bits: enough for any normal sum, too small for `9**9**9`."""

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Calculator(ToolEnv):
    """Multiply two numbers with a calculator."""

    system = "Answer with the number alone."
    max_turns = 4

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a product of two factors below a hundred."""
        a, b = rng.integers(100, size=2)
        return Task(prompt=f"What is {a} * {b}?", answer=str(a * b))

    @tool
    def calculator(self, expression: str) -> str:
        """Evaluate an arithmetic expression."""
        return str(safe_eval(expression))

    def reward(self, attempt: Attempt) -> float:
        """Return 1.0 if the answer is the product, alone or in a sentence that states one number."""
        return float(states_number(attempt.answer, attempt.task.answer))


def safe_eval(expression: str) -> Number:
    """Return the value of an expression of numbers, + - * / // % ** and brackets. Raise `ToolError` for other text."""
    if len(expression) > MAX_LETTERS:
        raise ToolError(f"the expression has {len(expression)} characters; at most {MAX_LETTERS} are read")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        raise ToolError(f"cannot evaluate {expression!r}; write an expression like 23 * (41 + 7)") from None


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _bounded(_power(left, right))
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    raise ValueError(type(node).__name__)


def _power(base: Number, exponent: Number) -> Number:
    """Return a power. Raise `ToolError` before computing it if it would be too large."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise ToolError("the power is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ToolError("the power is not a real number")
    return float(result) if isinstance(result, float) else int(result)


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise ToolError("the number is too large")
    return value


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: the calculator once, then its reply. With probability 1 - tool_rate, guess at once."""
    if replies := replies_of(messages):
        return replies[-1]
    product = re.search(r"\d+ \* \d+", question_of(messages))
    if product is None or rng.random() >= tool_rate:
        return str(rng.integers(10_000))
    return call("calculator", expression=product[0])
