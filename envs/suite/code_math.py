r"""Mathematics with a Python interpreter: problems from a file, or from eight families that need computing.

A task:      What is the remainder when 27^315 is divided by 473?
An episode:  <tool_call>{"name": "python", "arguments": {"code": "print(pow(27, 315, 473))"}}</tool_call>
             155
             The answer is \boxed{155}.

`tasks=FILE` takes DAPO-Math, Skywork-OR1, AIME and others with their own columns. The prompts follow arXiv 2510.11701
in content, not in wording; `mode="self-contained"` is that paper's setting without tools.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import comb, gcd, lcm
from typing import Any

import numpy as np

from palaestra.envs import Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.data.problem_files import load_problems
from palaestra.envs.data.rows import describe
from palaestra.envs.rewards import mathematics
from palaestra.envs.rewards.answer import reading
from palaestra.envs.suite.demonstrations import call, question_of, replies_of, solution_of
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt, Message
from palaestra.errors import UsageError

AGENTIC = (
    "Analyse the problem step by step, and first settle on a strategy. The Python tool computes precisely: use it to "
    "work things out and to check them. When you know the answer stop calling it, and end with \\boxed{ANSWER}: one "
    "answer, without units."
)
SELF_CONTAINED = "Reason step by step. End with \\boxed{ANSWER}: one answer, without units."
MODES = ("agentic", "self-contained")
COMPARISONS = ("value", "text")
QUESTIONS = ("problem", "question", "Problem", "Question")
"""Columns that hold the question in files without a `prompt`."""

_OTHER_FORM = re.compile(
    r"\s*Solve the following math problem step by step\. The last line of your response should be of the form "
    r"\"?answer:[^\n]*\n+(.*?)\n+Remember to put your answer on its own line [^\n]*\s*",
    re.DOTALL | re.IGNORECASE,
)
"""Text around every problem in the prompts of DAPO-Math and simple-evals: it asks for a line "Answer: ..."."""

_SENTENCE = re.compile(r"\banswer\s*(?:is\b|:)|####", re.IGNORECASE)

_IMPORTS = "from fractions import Fraction\nfrom math import comb, gcd, lcm\n"
_SCOPE: Mapping[str, Any] = {"Fraction": Fraction, "comb": comb, "gcd": gcd, "lcm": lcm}


@dataclass(frozen=True, slots=True)
class MathTemplate:
    """A question, the expression of its answer, and the ranges of its numbers, which are wide, so few tasks repeat."""

    name: str
    question: str
    expression: str
    ranges: Mapping[str, tuple[int, int]]
    """Smallest and largest number of each letter of the question."""

    def task(self, rng: np.random.Generator) -> Task:
        """Draw the numbers of a task. `eval` runs the expression, which is ours; never pass an agent's text to it."""
        numbers = {letter: int(rng.integers(low, high + 1)) for letter, (low, high) in self.ranges.items()}
        answer = str(eval(self.expression.format(**numbers), dict(_SCOPE)))
        return Task(prompt=self.question.format(**numbers), answer=answer, data={"family": self.name})


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


class CodeMath(ToolEnv):
    """Solve a problem with Python."""

    max_turns = 16
    system = AGENTIC
    deadlines = {"reward": 300.0}  # noqa: RUF012  (A comparison ends sooner by far, once its process has started.)

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        mode: str = "agentic",
        compare: str = "value",
        sandbox: Where = "local",
    ) -> None:
        """`mode` is agentic or self-contained. `compare` is "value", or "text": the paper's own exact comparison.

        `sandbox` is where programs run.
        """
        for name, value, choices in (("mode", mode, MODES), ("compare", compare, COMPARISONS)):
            if value not in choices:
                raise UsageError(f"{name} is {value!r}; expected {' or '.join(map(repr, choices))}")
        super().__init__(split, tasks)
        self.compare = compare
        self.toolkits = in_sandbox(sandbox, Python) if mode == "agentic" else ()
        self.system = AGENTIC if mode == "agentic" else SELF_CONTAINED

    def read_tasks(self, path: str, split: str) -> Sequence[Task]:
        """Read the problems of a file; it may have the columns of a published data set."""
        return load_problems(path, split, QUESTIONS, _with_answer)

    def task(self, rng: np.random.Generator) -> Task:
        return FAMILIES[rng.integers(len(FAMILIES))].task(rng)

    async def reward(self, attempt: Attempt) -> float:
        r"""Return 1.0 if the value in the last \boxed{} is right. A generated problem needs a number, no expression."""
        expected = attempt.task.answer
        if self.compare == "text":
            return float(mathematics.strictly_matches(attempt.answer, expected))
        if "family" in attempt.task.data:
            return float(mathematics.number_matches(attempt.answer, expected))
        return float(await mathematics.matches(attempt.answer, expected))

    def explain(self, attempt: Attempt) -> str:
        r"""Return the content of the \boxed{}, and the rule that compares it."""
        if self.compare == "text":
            value = mathematics.strictly_boxed(attempt.answer)
            return reading(value, r"the last 100 characters' \boxed{}", "compared to the letter")
        value = mathematics.boxed(attempt.answer)
        how = "compared as a number that is written out"
        if "family" not in attempt.task.data:
            how = mathematics.rule(value or "", attempt.task.answer)
        return reading(value, r"the last \boxed{}", how)


def _with_answer(task: Task) -> Task:
    """Check that a task has an answer, and remove a request for another answer format from its prompt."""
    if task.answer is None or not str(task.answer).strip():
        raise ValueError("it has no answer; expected one in a column answer, ground_truth or solution")
    answers = mathematics.alternatives(task.answer) if isinstance(task.answer, str | int | float | list) else []
    if not answers or isinstance(task.answer, bool):
        raise ValueError(f"its answer is {describe(task.answer)}; expected a number, text, or a list of such")
    for answer in answers:
        if why := _never_right(answer):
            raise ValueError(f"no answer can be the same as {answer!r:.60}: {why}")
    wrapped = _OTHER_FORM.fullmatch(task.prompt)
    return task if wrapped is None else replace(task, prompt=wrapped[1])


def _never_right(expected: str) -> str:
    """Return why no boxed text can equal this answer; "" if one can."""
    if not expected.strip() or expected.strip() == "[]":
        return "it is empty"
    if re.match(r'\[\s*"', expected):
        return "it begins as a list of texts, and is no JSON"
    if len(re.findall(r"(?<!\\)\{", expected)) != len(re.findall(r"(?<!\\)\}", expected)):
        return "its braces do not match"
    return "it is a sentence; expected the answer alone" if _SENTENCE.search(expected) else ""


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: one program, then what it printed. With probability 1 - tool_rate, guess at once."""
    if replies := replies_of(messages):
        return f"The answer is \\boxed{{{replies[-1].strip()}}}."
    expression = solution_of(question_of(messages), ((family.question, family.expression) for family in FAMILIES))
    if rng.random() >= tool_rate:
        return f"The answer is \\boxed{{{rng.integers(1000)}}}."
    return call("python", code=f"{_IMPORTS}print({expression})")
