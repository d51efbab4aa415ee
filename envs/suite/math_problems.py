"""Generated mathematics that is hard by head and short in Python: eight families, each with its rule.

A family is a question with numbers to be put in and the expression that answers it. Numbers come from ranges wide
enough that a question hardly ever comes twice. Left out: problems whose solution is more than a computation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb, gcd, lcm
from typing import Any

import numpy as np

from palaestra.episode import Task

IMPORTS = "from fractions import Fraction\nfrom math import comb, gcd, lcm\n"
_SCOPE: Mapping[str, Any] = {"Fraction": Fraction, "comb": comb, "gcd": gcd, "lcm": lcm}


@dataclass(frozen=True, slots=True)
class MathTemplate:
    name: str
    question: str
    expression: str
    ranges: Mapping[str, tuple[int, int]]
    """Smallest and largest number of each letter of the question."""

    def task(self, rng: np.random.Generator) -> Task:
        numbers = {letter: int(rng.integers(low, high + 1)) for letter, (low, high) in self.ranges.items()}
        answer = str(evaluated(self.expression.format(**numbers)))
        return Task(prompt=self.question.format(**numbers), answer=answer, data={"family": self.name})

    def expression_of(self, question: str) -> str | None:
        """Return the expression that answers a question of this family; None for any other question."""
        pattern = re.sub(r"\\{(\w)\\}", r"(?P<\1>\\d+)", re.escape(self.question))
        match = re.fullmatch(pattern, question)
        return self.expression.format(**match.groupdict()) if match else None


FAMILIES = (
    MathTemplate(
        "power_remainder", "What is the remainder when {a}^{b} is divided by {m}?",
        "pow({a}, {b}, {m})",
        {"a": (11, 99), "b": (101, 999), "m": (101, 997)},
    ),
    MathTemplate(
        "digit_sum", "What is the sum of the decimal digits of {a}^{b}?",
        "sum(map(int, str({a}**{b})))",
        {"a": (3, 99), "b": (20, 80)},
    ),
    MathTemplate(
        "divisible_by_neither", "How many whole numbers from 1 to {n} are divisible neither by {a} nor by {b}?",
        "sum(1 for k in range(1, {n} + 1) if k % {a} and k % {b})",
        {"n": (500, 5000), "a": (3, 19), "b": (3, 19)},
    ),
    MathTemplate(
        "binomial_remainder",
        "In how many ways can {k} of {n} people be chosen? Give the remainder of that number on division by {m}.",
        "comb({n}, {k}) % {m}",
        {"n": (30, 90), "k": (7, 25), "m": (101, 997)},
    ),
    MathTemplate(
        "dice",
        "Three fair dice with {a}, {b} and {c} sides are thrown; each side is as likely as any other, and they are "
        "numbered from 1 on. With what probability is the sum {s}? Give a fraction in lowest terms.",
        "Fraction(sum(1 for x in range(1, {a} + 1) for y in range(1, {b} + 1) for z in range(1, {c} + 1) "
        "if x + y + z == {s}), {a} * {b} * {c})",
        {"a": (4, 12), "b": (4, 12), "c": (4, 12), "s": (8, 12)},
    ),
    MathTemplate(
        "harmonic",
        "Compute the sum of 1/k over all whole numbers k from {a} to {b} as a fraction in lowest terms, and give its "
        "numerator modulo {m}.",
        "sum(Fraction(1, k) for k in range({a}, {b} + 1)).numerator % {m}",
        {"a": (2, 30), "b": (40, 60), "m": (101, 997)},
    ),
    MathTemplate(
        "common_multiple",
        "What is the least common multiple of {a}, {b} and {c}, divided by their greatest common divisor?",
        "lcm({a}, {b}, {c}) // gcd({a}, {b}, {c})",
        {"a": (12, 360), "b": (12, 360), "c": (12, 360)},
    ),
    MathTemplate(
        "recurrence",
        "A sequence begins with x_0 = {a}, and x_n is the remainder of {b} x_(n-1)^2 + {c} on division by {m}. "
        "What is x_{n}?",
        "[x := {a}, *(x := ({b} * x * x + {c}) % {m} for _ in range({n}))][-1]",
        {"a": (1, 99), "b": (2, 19), "c": (1, 99), "m": (211, 997), "n": (20, 60)},
    ),
)  # fmt: skip


def draw(rng: np.random.Generator) -> Task:
    return FAMILIES[rng.integers(len(FAMILIES))].task(rng)


def program_for(question: str) -> str | None:
    """Return a program that prints the answer to a generated question; None for any other question."""
    expressions = (family.expression_of(question) for family in FAMILIES)
    expression = next((candidate for candidate in expressions if candidate is not None), None)
    return None if expression is None else f"{IMPORTS}print({expression})"


def evaluated(expression: str) -> Any:
    """Return the value of an expression of these families. Never call it with other text: it uses `eval`."""
    return eval(expression, dict(_SCOPE))
