"""Compares answers by math-verify in processes that can be killed (`limited_processes`): agents wrote the answers.

An answer that takes too much time or memory counts as different. There are two queues, so that slow answers of one
agent do not take the verdict of another agent's quick ones. Answers that are quick by their text (`structure.light`)
have processes of their own and wait only for each other, a fraction of a second each. Any other answer that has waited
QUEUE_SECONDS counts as different, without a comparison. A comparison takes at most SECONDS, from its own start.
`mathematics` decides which answers are compared in this way.
"""

import json
from functools import cache
from importlib.util import find_spec

from palaestra.envs.rewards import structure
from palaestra.envs.rewards.limited_processes import LimitedProcesses
from palaestra.errors import MissingExtra

SECONDS = 2.0
"""Seconds that one comparison may take, without its time in the queue."""
QUEUE_SECONDS = 20.0
"""Seconds that a possibly slow answer waits for a process; well below the timeout of any environment's reward."""
MEGABYTES = 2048
"""Address space of a process; sympy alone maps a few hundred megabytes."""
MAX_CHARS = 300
"""Longest answer in characters that is compared; a longer one counts as different."""


async def equal(answer: str, expected: str) -> bool:
    """Return whether math-verify calls two answers equal, within the time limit."""
    if max(len(answer), len(expected)) > MAX_CHARS:
        return False
    _require()
    question = json.dumps([answer, expected])
    if structure.light(answer):
        return await _light.ask("math-verify", question) == "True"
    return await _others.ask("math-verify", question, QUEUE_SECONDS) == "True"


def close() -> None:
    """End the processes; the next comparison starts others."""
    _light.close()
    _others.close()


@cache  # A missing package is looked for again, since errors are not cached.
def _require() -> None:
    if find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "code", "comparing answers that are no plain numbers")


class SymbolicEqualityJob:
    """The job of the processes (`limited_processes`): it compares two answers with math-verify."""

    @staticmethod
    def load(setting: str) -> str:
        """Load math-verify, and everything that it loads at its first use."""
        import logging

        import math_verify  # type: ignore[import-untyped]

        logging.disable(logging.CRITICAL)  # It warns that its own time-outs are off.
        math_verify.verify(math_verify.parse("1", parsing_timeout=None), [], timeout_seconds=None)
        return f"{setting} is ready"

    @staticmethod
    def answer(setting: str, question: str) -> str:
        """Return "True" if two answers are equal. The timeouts of math-verify come late, so they are not used."""
        from math_verify import parse, verify

        actual, expected = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in json.loads(question))
        return str(bool(expected and actual) and verify(expected, actual, timeout_seconds=None))


_light, _others = (
    LimitedProcesses(SymbolicEqualityJob, SECONDS, MEGABYTES),
    LimitedProcesses(SymbolicEqualityJob, SECONDS, MEGABYTES),
)
