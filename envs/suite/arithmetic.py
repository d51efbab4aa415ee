"""Word problems that are too long for mental arithmetic: write a line of Python, run it, report the number.

A task:      A crate holds 7 plums. How many plums are in 6 crates and 3 loose ones?
An episode:  <tool_call>{"name": "python", "arguments": {"code": "print(7*6+3)"}}</tool_call>
             45
             Answer: 45

The numbers have one digit by default and the answers at most two: a tiny model then learns what to compute instead of
how to copy long numbers. Give `digits=2` or more for longer ones.
"""

from collections.abc import Sequence

import numpy as np

from palaestra.envs import Task, ToolEnv
from palaestra.envs.core.backends import Where
from palaestra.envs.rewards.answer import MARK
from palaestra.envs.rewards.stated_number import states_number
from palaestra.envs.suite.demonstrations import call, question_of, replies_of, solution_of
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt, Message
from palaestra.errors import UsageError

TEMPLATES = (
    ("A crate holds {a} plums. How many plums are in {b} crates and {c} loose ones?", "{a}*{b}+{c}"),
    ("A hall has {a} rows of {b} seats and {c} stools. How many can sit?", "{a}*{b}+{c}"),
    ("Ann reads {a} pages a day for {b} days and then {c} more. How many pages?", "{a}*{b}+{c}"),
    ("A shop sells {a} cups at {b} coins and a plate at {c}. What does it earn?", "{a}*{b}+{c}"),
    ("Tom has {a} stamps and buys {b} sheets of {c}. How many stamps has he?", "{a}+{b}*{c}"),
    ("A jar holds {a} beans and gets {b} scoops of {c} more. How many beans?", "{a}+{b}*{c}"),
    ("A train has {a} seats, a tram {b} and a bus {c}. How many seats in all?", "{a}+{b}+{c}"),
    ("A bus takes {a} girls, then {b} boys and {c} teachers. How many seats are taken?", "{a}+{b}+{c}"),
)
"""Question templates, each with the expression of its answer."""


class Programs(Python):
    """Python without a session: an episode needs only one call, so no state is kept."""

    stateful = False
    show_last = False


class Arithmetic(ToolEnv):
    """Solve a word problem with Python."""

    system = "End with Answer: NUMBER"
    max_turns = 4

    def __init__(
        self, split: str = "train", tasks: str | None = None, digits: int = 1, sandbox: Where = "local"
    ) -> None:
        """`digits` is how many the numbers have, `sandbox` where programs run."""
        if not 1 <= digits <= 9:
            raise UsageError(f"digits is {digits}; expected 1 to 9")
        super().__init__(split, tasks)
        self.digits = digits
        self.toolkits = in_sandbox(sandbox, Programs)

    def task(self, rng: np.random.Generator) -> Task:
        """Draw one of the templates, and its numbers (2 or more)."""
        question, expression = TEMPLATES[rng.integers(len(TEMPLATES))]
        low = 2 if self.digits == 1 else 10 ** (self.digits - 1)
        numbers = {letter: int(rng.integers(low, 10**self.digits)) for letter in "abc"}
        return Task(prompt=question.format(**numbers), answer=str(_value(expression.format(**numbers))))

    def reward(self, attempt: Attempt) -> float:
        """Return 1.0 if the number is right, alone, after "Answer:", or in a sentence that states one number."""
        return float(states_number(attempt.answer, attempt.task.answer))


def _value(expression: str) -> int:
    """Return the value of an expression of these templates. Never call it with other text: it uses `eval`."""
    return int(eval(expression, {"__builtins__": {}}))


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: one program, then its output. With probability 1 - tool_rate, guess at once."""
    if replies := replies_of(messages):
        return f"{MARK} {replies[-1].strip()}"
    expression = solution_of(question_of(messages), TEMPLATES)
    if rng.random() >= tool_rate:
        return f"{MARK} {rng.integers(6, 91)}"
    return call("python", code=f"print({expression})")
