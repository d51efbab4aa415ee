"""Two debaters argue the two sides of a question before a judge who cannot compute.

A task:      Is 23 * 41 greater than 900?
A game:      debater_0 argues Yes and debater_1 No, both with a calculator: first each for itself, then in reply to
             the other. The judge hears both and says Yes or No.

The debaters' rewards add up to zero: the one that convinces the judge gets 1, the other -1. Both get 0 if the judge
does not decide. The judge gets 1 for the true answer, otherwise 0.
"""

import re
from collections.abc import Sequence

import numpy as np

from palaestra.envs.core.author import Game, Rewards, Rounds
from palaestra.envs.core.scoring import RewardPart
from palaestra.envs.suite.calculator import Calculator
from palaestra.envs.suite.demonstrations import call, question_of, replies_of
from palaestra.envs.suite.solver_critic import quoted
from palaestra.episode import Message, Task

PRO, CON, JUDGE = "debater_0", "debater_1", "judge_0"
SIDES = {PRO: "Yes", CON: "No"}
_QUESTION = re.compile(r"Is (\d+) \* (\d+) greater than (\d+)\?")


class Debate(Game):
    """Convince the judge, or be the judge."""

    seats = (PRO, CON, JUDGE)
    system = {  # noqa: RUF012
        PRO: "You debate. Argue that the answer is Yes.",
        CON: "You debate. Argue that the answer is No.",
        JUDGE: "You judge a debate. Begin with Yes or No.",
    }
    seat_tools = {PRO: ("calculator",), CON: ("calculator",)}  # noqa: RUF012
    # One debater wins: one that says nothing is believed half of the time, and a judge may guess.
    chance = dict.fromkeys(seats, 0.5)
    calculator = Calculator.calculator
    parts = {  # noqa: RUF012
        "success": RewardPart(weight=0.0),
        "duel": RewardPart(low=-1.0),
        "right": RewardPart(),
    }

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a product and a bound near it. Each side is right half of the time."""
        a, b = (int(factor) for factor in rng.integers(10, 100, size=2))
        product = a * b
        gap = int(rng.integers(1, product // 5 + 2))
        bound = product + gap - 1 if rng.random() < 0.5 else product - gap
        return Task(prompt=f"Is {a} * {b} greater than {bound}?", answer="Yes" if product > bound else "No")

    def rounds(self, task: Task, rng: np.random.Generator) -> Rounds:
        """Let both debaters open without seeing the other's text, let both reply, then let the judge decide."""
        opened = yield {PRO: task.prompt, CON: task.prompt}
        replied = yield {PRO: quoted(opened[CON]), CON: quoted(opened[PRO])}
        # One line for each statement, so that a debater cannot write a line in the name of the other.
        statements = [
            f"{SIDES[seat]}: {' '.join(quoted(texts[seat]).split())}" for texts in (opened, replied) for seat in SIDES
        ]
        verdict = decision((yield {JUDGE: "\n".join([task.prompt, *statements])})[JUDGE])
        won = {seat: 0.0 if verdict is None else 1.0 if verdict == side else -1.0 for seat, side in SIDES.items()}
        right = float(verdict == task.answer)
        return {
            **{seat: {"success": float(duel > 0), "duel": duel} for seat, duel in won.items()},
            JUDGE: {"success": right, "right": right},
        }

    def forfeit(self, culprit: str) -> Rewards:
        """Let a debater that fails lose. If the judge fails, every seat gets 0."""
        if culprit == JUDGE:
            return {}
        return {seat: {"success": float(seat != culprit), "duel": -1.0 if seat == culprit else 1.0} for seat in SIDES}


def decision(text: str | None) -> str | None:
    """Return the Yes or No that a verdict begins with; None if it begins with neither."""
    match = re.match(r"\W*(yes|no)\b", text or "", re.IGNORECASE)
    return None if match is None else match[1].capitalize()


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play any seat by rule; the system text names it. A debater whom the product contradicts only repeats its side."""
    question, replies = question_of(messages), replies_of(messages)
    match = _QUESTION.search(question)
    role = messages[0]["content"]
    if role == Debate.system[JUDGE]:
        claims = {int(value) for value in re.findall(r"= (\d+)", question)}
        if match is None or len(claims) != 1:
            return "Yes" if rng.random() < 0.5 else "No"
        return "Yes" if claims.pop() > int(match[3]) else "No"
    side = SIDES[PRO] if role == Debate.system[PRO] else SIDES[CON]
    if not replies and match is not None and rng.random() < tool_rate:
        return call("calculator", expression=f"{match[1]} * {match[2]}")
    if match is not None and replies and replies[-1].isdigit():
        verdict = "Yes" if int(replies[-1]) > int(match[3]) else "No"
        if verdict == side:
            return f"{side}: {match[1]} * {match[2]} = {replies[-1]}"
    return f"The answer is {side}."
