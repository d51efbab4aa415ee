"""Word problems whose sums are too long for the head: write a line of Python, run it, report the number.

A task:      A crate holds 23 plums. How many plums are in 41 crates and 7 loose ones?
An episode:  <tool_call>{"name": "python", "arguments": {"code": "print(23*41+7)"}}</tool_call>
             950
             Answer: 950
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from palaestra.envs import Task, ToolEnv
from palaestra.envs.rewards.answer import MARK, final_answer
from palaestra.envs.tools.process_python import ProcessPython
from palaestra.episode import Attempt, Message
from palaestra.formats import ParsedCall, hermes

TEMPLATES = (
    ("A box holds {a} pens. How many pens are in {b} boxes?", "a*b"),
    ("A crate holds {a} plums. How many plums are in {b} crates and {c} loose ones?", "a*b+c"),
    ("A hall has {a} rows of {b} seats and {c} are broken. How many seats work?", "a*b-c"),
    ("Ann reads {a} pages a day for {b} days, then {c} a day for {d} days. How many pages?", "a*b+c*d"),
    ("{a} girls and {b} boys plant {c} trees each. How many trees?", "(a+b)*c"),
    ("A train has {a} seats, another {b}, and a bus {c}. How many seats in all?", "a+b+c"),
    ("A shop sells {a} cups at {b} coins and pays {c} coins of rent. What is left?", "a*b-c"),
    ("A baker fills {a} trays of {b} rolls and {c} of {d}. How many rolls are that?", "a*b+c*d"),
)
"""A question and its expression; operands have two digits, so answers have one to five and are never negative."""

_NUMBER = r"(\d+)"


class Arithmetic(ToolEnv):
    """Solve a word problem with Python."""

    system = "End with Answer: NUMBER"
    max_turns = 4
    toolkits = (ProcessPython,)

    def task(self, rng: np.random.Generator) -> Task:
        """One of eight templates with two-digit numbers."""
        question, expression = TEMPLATES[rng.integers(len(TEMPLATES))]
        a, b, c, d = (int(number) for number in rng.integers(10, 100, size=4))
        numbers = {"a": a, "b": b, "c": c, "d": d}
        answer = {
            "a*b": a * b, "a*b+c": a * b + c, "a*b-c": a * b - c, "a*b+c*d": a * b + c * d,
            "(a+b)*c": (a + b) * c, "a+b+c": a + b + c,
        }[expression]
        return Task(prompt=question.format(**numbers), answer=str(answer))

    def reward(self, attempt: Attempt) -> float:
        """The number, and nothing beside it."""
        return float(final_answer(attempt.answer) == attempt.task.answer)


def _expression(question: str) -> str | None:
    """The sum a question asks for, with its numbers put in; None when it is none of ours."""
    for template, expression in TEMPLATES:
        names = re.findall(r"\{(\w)\}", template)
        match = re.fullmatch(re.sub(r"\\\{\w\\\}", lambda _: _NUMBER, re.escape(template)), question)
        if match:
            values = dict(zip(names, match.groups(), strict=True))
            return re.sub(r"[a-d]", partial(_value_of, values), expression)
    return None


def _value_of(values: Mapping[str, str], letter: re.Match[str]) -> str:
    return values[letter[0]]


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: one program, then its output. With probability 1 - tool_rate, guess at once."""
    replies = [message["content"] for message in messages if message["role"] == "tool"]
    if replies:
        return f"{MARK} {str(replies[-1]).strip()}"
    question = next(message["content"] for message in messages if message["role"] == "user")
    expression = _expression(question)
    if expression is None or rng.random() >= tool_rate:
        return f"{MARK} {rng.integers(10, 10_000)}"
    return hermes.render([ParsedCall("python", {"code": f"print({expression})"})])
