"""Stitched episodes: a written solution is played, with a real tool call in place of each computation.

    "4 * 6 = 24. Then 24 + 1 = 25."   ->   a call of "4 * 6", its result; "Then", a call of "24 + 1", its result; "."

This is the synthetic baseline of arXiv 2510.11701, section 3.1: such an episode never shows a plan that failed. The
value that the solution gives for a computation is left out of the text, because the tool returns it; both values are
only compared after the episode (`agrees`). Left out: computations that are not plain arithmetic, and reading solutions.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra import formats
from palaestra.agents.policies.scripted import ScriptedPolicy
from palaestra.episode import Call, Status
from palaestra.errors import UsageError
from palaestra.formats import ParsedCall, hermes
from palaestra.protocols import Request

MAX_CALLS = 3
"""Maximum number of calls of an episode: the longest computations of a solution are replaced, the others
stay as text."""
_NUMBER = r"(?>\d{1,3}(?:,\d{3})++(?![\d,])|\d++)(?:\.\d++)?+"
_OPERATOR = r"(?>\*\*|//|\\times|\\cdot|\\div|[-+*/^×·÷−])"
_TERM = rf"[(\s]{{0,8}}+(?:-\s?)?+{_NUMBER}[)\s]{{0,8}}+"  # Bounded: the time is linear in the length of the text.
_COMPUTATION = re.compile(
    rf"(?<![\w.,)\\])(?P<expression>{_TERM}(?:{_OPERATOR}{_TERM})++)"
    rf"(?:=\s{{0,8}}+(?P<value>-?{_NUMBER})(?!\s?{_OPERATOR}\s?[\d(]|[\w%(\\]))?+"
)
"""A whole expression of numbers, and the value that the text claims for it, if any."""
_OPERATORS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"}
_ARGUMENT_TEMPLATES = {"expression": "{}", "code": "print({})"}
"""Template of the argument, by the name of the tool's one required argument."""


@dataclass(frozen=True, slots=True)
class StitchedStep:
    """One computation of a solution, with the text before it."""

    response: str
    """Text before the computation."""
    expression: str
    value: str
    """Result that the solution claims."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution that was split at its computations (`cut`)."""

    steps: tuple[StitchedStep, ...]
    tail: str
    """Text after the last computation."""
    answer: str
    """Text after the thinking, if the solution has `<think>` tags; otherwise ""."""
    thinks: bool

    def turn(self, number: int, call: str) -> str:
        """Return the text of a turn that ends with `call`. After the last computation there is no call: it is empty."""
        text = self.steps[number].response if call else self.tail
        if self.thinks:
            text = f"<think>\n{text}\n</think>\n\n" if text else ""
        return "".join((text, "" if self.thinks or not text or not call else "\n", call or self.answer))


def cut(text: str, max_calls: int = MAX_CALLS) -> Solution:
    """Split a solution at its computations. If there are more than `max_calls`, split only at the longest ones."""
    thought, mark, answer = text.rpartition("</think>")
    reasoning = thought.partition("<think>")[2] or thought if mark else answer
    computations = [match for match in map(_whole, _COMPUTATION.finditer(reasoning)) if match is not None]
    longest = sorted(computations, key=lambda match: match[0] - match[1])[:max_calls]
    steps, position = [], 0
    for begin, end, expression, value in sorted(longest):
        steps.append(StitchedStep(_trimmed(reasoning[position:begin], bool(position)), expression, value))
        position = end
    tail, answer = _trimmed(reasoning[position:], bool(position)), answer.strip() if mark else ""
    if steps and not tail and not answer:  # It ends with a computation, so the last turn states its value.
        tail = steps[-1].value
    return Solution(tuple(steps), tail, answer, bool(mark))


def _whole(match: re.Match[str]) -> tuple[int, int, str, str] | None:
    """Return the begin and the end of a computation, its expression as a tool reads it, and its value.

    Return None if the computation is incomplete.
    """
    text, begin = match["expression"], match.start()
    begin += len(text) - len(text.lstrip())
    while text.count("(") > text.count(")") and text.lstrip().startswith("("):
        text = text.lstrip()[1:]
        begin += 1
    before = match.string[:begin].rstrip().removesuffix("(")[-1:]
    if match["value"] is None or text.count("(") != text.count(")") or before in tuple("+-*/^×·÷−"):
        return None
    for sign, plain in _OPERATORS.items():
        text = text.replace(sign, plain)
    return begin, match.end(), " ".join(text.replace(",", "").split()), match["value"]


def _trimmed(text: str, follows: bool) -> str:
    """Return the text between two computations without signs such as "=" and "$" at its ends.

    `follows` is True if a computation comes before the text.
    """
    return text.strip().rstrip("$(=: \n").lstrip("$).,;: \n" if follows else "")


def agrees(solution: Solution, calls: Sequence[Call]) -> bool:
    """Return whether each call succeeded and returned the solution's value, rounded to as many decimals as that has."""
    if len(calls) != len(solution.steps) or any(call.status is not Status.OK for call in calls):
        return False
    return all(_equal(call.text, step.value) for call, step in zip(calls, solution.steps, strict=True))


def _equal(result: str, claimed: str) -> bool:
    try:
        actual, expected = (float(text.strip().replace(",", "")) for text in (result, claimed))
    except ValueError:
        return False
    decimals = len(claimed.partition(".")[2])
    return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=0.51 * 10**-decimals if decimals else 1e-9)


class Stitched(ScriptedPolicy):
    """Engine that plays the solution of each task: one turn with a call per computation, then the rest of the text."""

    def __init__(self, solution: Callable[[int], Solution], format: str = formats.DEFAULT) -> None:
        """`solution` is a function that returns the solution for a task's number."""
        super().__init__(lambda messages, rng: "", format=format)
        self._solution = solution

    def turn(self, request: Request) -> object:
        """Return the text of the solution up to the end of the next computation, as a turn."""
        solution, number = self._solution(request.start.task), request.turn
        computes = number < len(solution.steps)
        return solution.turn(number, _call(solution.steps[number].expression, request.tools) if computes else "")


def _call(expression: str, tools: Sequence[Mapping[str, Any]]) -> str:
    for name, written in _ARGUMENT_TEMPLATES.items():
        for tool in (schema.get("function", schema) for schema in tools):
            if tool.get("parameters", {}).get("required") == [name]:
                return hermes.render([ParsedCall(tool["name"], {name: written.format(expression)})])
    offered = ", ".join(schema.get("function", schema).get("name", "?") for schema in tools) or "none"
    raise UsageError(
        "no tool here computes: expected one whose only required argument is called expression or code; the "
        f"environment offers {offered}"
    )
