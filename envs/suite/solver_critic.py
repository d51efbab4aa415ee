"""A solver answers, a critic comments, the solver answers again: products of two numbers, a calculator for both.

A task:      What is 23 * 41?
A game:      solver_0   <tool_call>{"name": "calculator", "arguments": {"expression": "23 * 41"}}</tool_call>  ->  943
             solver_0   943
             critic_0   (after a call of its own)  Agree.
             solver_0   943

The solver is rewarded for its last answer, the critic for a verdict that fits the first answer, so the critic gains
nothing by pleasing the solver. A critic that always agrees succeeds as often as the first answer is right. The part
`first` reports this rate: if the solver is nearly always right, compare the critic's success with it.
"""

import re
from collections.abc import Sequence

import numpy as np

from palaestra.envs.core.author import Game, Rounds
from palaestra.envs.core.calls import clip
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.rewards.answer import final_answer
from palaestra.envs.rewards.stated_number import states_number
from palaestra.envs.suite.calculator import Calculator
from palaestra.envs.suite.demonstrations import call, replies_of
from palaestra.episode import Message, Task

SOLVER, CRITIC = "solver_0", "critic_0"
MAX_QUOTE = 1000
"""Longest part of one seat's text that another seat reads, in characters."""


class SolverCritic(Game):
    """Answer, hear a critic, answer again."""

    seats = (SOLVER, CRITIC)
    system = {  # noqa: RUF012
        SOLVER: "Solve. Answer with the number alone.",
        CRITIC: "Check the answer under the question. Begin with Agree or Disagree.",
    }
    seat_tools = {SOLVER: ("calculator",), CRITIC: ("calculator",)}  # noqa: RUF012
    calculator = Calculator.calculator
    parts = {"success": RewardPart(), "first": RewardPart(weight=0.0)}  # noqa: RUF012

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a product of two factors below a hundred."""
        a, b = rng.integers(100, size=2)
        return Task(prompt=f"What is {a} * {b}?", answer=str(a * b))

    def rounds(self, task: Task, rng: np.random.Generator) -> Rounds:
        first = (yield {SOLVER: task.prompt})[SOLVER]
        verdict = (yield {CRITIC: f"{task.prompt}\n{quoted(first)}"})[CRITIC]
        last = (yield {SOLVER: quoted(verdict)})[SOLVER]
        was_right, is_right = (states_number(answer, task.answer) for answer in (first, last))
        fits = agrees(verdict) is was_right
        return {
            SOLVER: {"success": float(is_right), "first": float(was_right)},
            CRITIC: {"success": float(fits), "first": float(was_right)},
        }


def quoted(text: str | None) -> str:
    """Return one seat's text as another seat reads it: cut to MAX_QUOTE characters, or a placeholder if it is empty."""
    return clip(text, MAX_QUOTE) if text else "(nothing)"


def agrees(verdict: str | None) -> bool | None:
    """Return True for a verdict that begins with Agree, False for Disagree, None for anything else."""
    match = re.match(r"\W*(agree|disagree)\b", verdict or "", re.IGNORECASE)
    return None if match is None else match[1].lower() == "agree"


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play either seat by rule; the system text names it. With probability 1 - tool_rate, guess and do not call."""
    prompts = [message["content"] for message in messages if message["role"] == "user"]
    since = max(at for at, message in enumerate(messages) if message["role"] == "user")
    replies = replies_of(messages[since:])
    product = re.search(r"\d+ \* \d+", prompts[0])
    if messages[0]["content"] != SolverCritic.system[CRITIC]:
        if len(prompts) > 1 and agrees(prompts[-1]):
            return next(str(m["content"]) for m in reversed(messages) if m["role"] == "assistant")
        if replies:
            return replies[-1]
        if product is None or rng.random() >= tool_rate:
            return str(rng.integers(10_000))
    elif replies or product is None or rng.random() >= tool_rate:
        claim = final_answer(prompts[0].partition("\n")[2])
        fits = claim == replies[-1] if replies else rng.random() < 0.5
        return "Agree." if fits else "Disagree."
    return call("calculator", expression=product[0])
