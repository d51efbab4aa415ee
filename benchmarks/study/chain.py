"""Chain: a fixed table combines three digits step by step, in the thinking of the agent or by a tool that has it.

A task:      Combine 4 7 2
Thinking:    4 with 7 makes 1 . 1 with 2 makes 5 . Answer: 5
By calls:    <tool_call>{"name": "combine", "arguments": {"query": "4 7"}}</tool_call>, the same with "1 2", Answer: 5

All tasks have the same table, so an agent can memorise pairs and then needs no tool for them. The demonstrator knows
some pairs, and writes a random digit for the others, so its thinking is right in a little over half of the tasks. A
call that can be parsed always has the right result. Left out: the length of thinking, which has the same steps in every
episode.
"""

from collections.abc import Sequence

import numpy as np
from codes import broken

import palaestra
from palaestra.envs import Task, ToolEnv, ToolError, tool
from palaestra.envs.rewards.answer import MARK, final_answer
from palaestra.episode import Attempt, Message
from palaestra.formats import ParsedCall, hermes

DIGITS = 10


def combined(first: int, second: int) -> int:
    """Return the entry of the table for a pair of digits."""
    return (7 * first + 3 * second + first * second * (first + 2 * second)) % DIGITS


def known(first: int, second: int, unknown: float) -> bool:
    """Return whether the demonstrator knows a pair; `unknown` is the share of pairs that it does not know."""
    return (37 * (DIGITS * first + second) + 11) % DIGITS**2 >= unknown * DIGITS**2


class Chain(ToolEnv):
    """Combine three digits."""

    system = "End with Answer: DIGIT"
    max_turns = 6

    def task(self, rng: np.random.Generator) -> Task:
        """Return three digits to combine from the left."""
        first, second, third = (int(one) for one in rng.integers(DIGITS, size=3))
        return Task(f"Combine {first} {second} {third}", str(combined(combined(first, second), third)))

    @tool
    def combine(self, query: str) -> str:
        """Combine a pair of digits: "4 7"."""
        digits = query.split()
        if len(digits) != 2 or not all(one.isdecimal() and len(one) == 1 for one in digits):
            raise ToolError("no pair")
        return str(combined(int(digits[0]), int(digits[1])))

    def reward(self, attempt: Attempt) -> float:
        """Return 1 for the right digit, bare or after "Answer:"."""
        return float(final_answer(attempt.answer) == attempt.task.answer)


def demonstrate(
    messages: Sequence[Message],
    rng: np.random.Generator,
    tool_rate: float = 1.0,
    unknown: float = 0.3,
    malformed: float = 0.0,
    thinks: bool = True,
) -> str:
    """Combine the digits by calls in a share `tool_rate` of the episodes, and by heart in the others: in steps if
    `thinks`, else by an answer alone. A share `malformed` of the calls cannot be served, and the answer is then `none`.
    """
    replies = [message["content"] for message in messages if message["role"] == "tool"]
    question = next(message["content"] for message in messages if message["role"] == "user").split()
    first, second, third = (int(one) for one in question[-3:])
    if any(len(reply) > 1 for reply in replies):
        return f"{MARK} none"
    if len(replies) == 2:
        return f"{MARK} {replies[-1]}"
    if replies or rng.random() < tool_rate:
        left, right = (replies[-1], third) if replies else (first, second)
        call = ParsedCall("combine", {"query": f"{left} {right}"})
        return broken(call, rng) if rng.random() < malformed else hermes.render([call])
    middle = _by_heart(first, second, unknown, rng)
    last = _by_heart(middle, third, unknown, rng)
    if not thinks:
        return f"{MARK} {last}"
    return f"{first} with {second} makes {middle} . {middle} with {third} makes {last} . {MARK} {last}"


def _by_heart(first: int, second: int, unknown: float, rng: np.random.Generator) -> int:
    return combined(first, second) if known(first, second, unknown) else int(rng.integers(DIGITS))


palaestra.register("study/Chain-v0", "chain:Chain", demonstrator="chain:demonstrate")
