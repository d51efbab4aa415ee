"""Stitched trajectories: a written solution, in which computations are replaced by calls that are really made.

    "4 * 6 = 24. Then 24 + 1 = 25."   ->   a call of "4 * 6", its result; "Then", a call of "24 + 1", its result; "."

The synthetic baseline of arXiv 2510.11701, section 3.1: such an episode never shows a plan that failed. What a tool
says is the tool's: a value that the solution claims is left out of what is said, and only compared afterwards. Left
out: computations that are not plain arithmetic, and where solutions come from.
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
"""Calls of an episode: the longest computations of a solution are replaced, the others stay as they are written."""
_NUMBER = r"(?>\d{1,3}(?:,\d{3})++(?![\d,])|\d++)(?:\.\d++)?+"
_OPERATOR = r"(?>\*\*|//|\\times|\\cdot|\\div|[-+*/^×·÷−])"
_TERM = rf"[(\s]{{0,8}}+(?:-\s?)?+{_NUMBER}[)\s]{{0,8}}+"  # Bounded: time grows in step with the text.
_COMPUTATION = re.compile(
    rf"(?<![\w.,)\\])(?P<expression>{_TERM}(?:{_OPERATOR}{_TERM})++)"
    rf"(?:=\s{{0,8}}+(?P<value>-?{_NUMBER})(?!\s?{_OPERATOR}\s?[\d(]|[\w%(\\]))?+"
)
"""An expression of numbers, whole, and the value that is claimed for it if one is."""
_SIGNS = {"\\times": "*", "\\cdot": "*", "\\div": "/", "×": "*", "·": "*", "÷": "/", "−": "-", "^": "**"}
_WRITTEN = {"expression": "{}", "code": "print({})"}
"""How an expression is written for a tool whose one required argument has this name."""


@dataclass(frozen=True, slots=True)
class Step:
    """A computation of a solution."""

    said: str
    """What is said before it."""
    expression: str
    value: str
    """What the solution says that it comes to."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution, cut where it computes."""

    steps: tuple[Step, ...]
    rest: str
    """What is said behind the last computation."""
    answer: str
    """What follows the thinking, where the solution thinks in `<think>` tags."""
    thinks: bool

    def turn(self, number: int, call: str) -> str:
        """What is said in that turn, with the call of its computation; behind the last one `call` is empty."""
        said = self.steps[number].said if call else self.rest
        if self.thinks:
            said = f"<think>\n{said}\n</think>\n\n" if said else ""
        return "".join((said, "" if self.thinks or not said or not call else "\n", call or self.answer))


def cut(text: str, max_calls: int = MAX_CALLS) -> Solution:
    """Find the computations of a solution, the longest ones where there are more than are wanted."""
    thought, mark, answer = text.rpartition("</think>")
    reasoning = thought.partition("<think>")[2] or thought if mark else answer
    found = [match for match in map(_whole, _COMPUTATION.finditer(reasoning)) if match is not None]
    longest = sorted(found, key=lambda match: match[0] - match[1])[:max_calls]
    steps, position = [], 0
    for begin, end, expression, value in sorted(longest):
        steps.append(Step(_trimmed(reasoning[position:begin], bool(position)), expression, value))
        position = end
    rest, answer = _trimmed(reasoning[position:], bool(position)), answer.strip() if mark else ""
    if steps and not rest and not answer:  # It ends with a computation, whose value is all that is left to say.
        rest = steps[-1].value
    return Solution(tuple(steps), rest, answer, bool(mark))


def _whole(match: re.Match[str]) -> tuple[int, int, str, str] | None:
    """Where a computation begins and ends, its expression as tools read it, and its value; None for a part of one."""
    text, begin = match["expression"], match.start()
    begin += len(text) - len(text.lstrip())
    while text.count("(") > text.count(")") and text.lstrip().startswith("("):
        text = text.lstrip()[1:]
        begin += 1
    before = match.string[:begin].rstrip().removesuffix("(")[-1:]
    if match["value"] is None or text.count("(") != text.count(")") or before in tuple("+-*/^×·÷−"):
        return None
    for sign, plain in _SIGNS.items():
        text = text.replace(sign, plain)
    return begin, match.end(), " ".join(text.replace(",", "").split()), match["value"]


def _trimmed(text: str, follows: bool) -> str:
    """What is said between two computations, without the signs that led to one or away from one."""
    return text.strip().rstrip("$(=: \n").lstrip("$).,;: \n" if follows else "")


def agrees(solution: Solution, calls: Sequence[Call]) -> bool:
    """Whether each call worked and gave what the solution says, as exactly as it says it."""
    if len(calls) != len(solution.steps) or any(call.status is not Status.OK for call in calls):
        return False
    return all(_equal(call.text, step.value) for call, step in zip(calls, solution.steps, strict=True))


def _equal(said: str, claimed: str) -> bool:
    try:
        found, wanted = (float(text.strip().replace(",", "")) for text in (said, claimed))
    except ValueError:
        return False
    decimals = len(claimed.partition(".")[2])
    return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=0.51 * 10**-decimals if decimals else 1e-9)


class Stitched(ScriptedPolicy):
    """Plays each task by its solution: a call for each computation, then the rest of what it says."""

    def __init__(self, solution: Callable[[int], Solution], format: str = formats.DEFAULT) -> None:
        """`solution` gives that of a task's number."""
        super().__init__(lambda messages, rng: "", format=format)
        self._solution = solution

    def turn(self, request: Request) -> object:
        """The next part of the solution."""
        solution = self._solution(request.start.task)
        if request.turn >= len(solution.steps):
            return solution.turn(request.turn, "")
        return solution.turn(request.turn, _call(solution.steps[request.turn].expression, request.tools))


def _call(expression: str, tools: Sequence[Mapping[str, Any]]) -> str:
    for name, written in _WRITTEN.items():
        for tool in (schema.get("function", schema) for schema in tools):
            if tool.get("parameters", {}).get("required") == [name]:
                return hermes.render([ParsedCall(tool["name"], {name: written.format(expression)})])
    offered = ", ".join(schema.get("function", schema).get("name", "?") for schema in tools) or "none"
    raise UsageError(
        "no tool here computes: expected one whose only required argument is called expression or code; the "
        f"environment offers {offered}"
    )
