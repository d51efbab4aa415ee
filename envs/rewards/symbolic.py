"""math-verify in processes that can be killed (`limited_processes`), since what it compares was written by an agent.

An answer that takes it too long, or too much memory, is different. There are two lines, so that what others wrote
costs nobody a verdict, and a flood of hard answers is no way out of one. Answers that are quick by their text
(`structure.light`) have processes of their own: they wait for each other alone, a fraction of a second each. Any other
answer that has waited QUEUE_SECONDS counts as different, without being looked at; a comparison takes SECONDS at most,
from its own start. Left out: deciding what goes here (`mathematics`).
"""

import json
from functools import cache
from importlib.util import find_spec

from palaestra.envs.rewards import structure
from palaestra.envs.rewards.limited_processes import LimitedProcesses
from palaestra.errors import MissingExtra

SECONDS = 2.0
"""How long one comparison may take; its time in line is not counted."""
QUEUE_SECONDS = 20.0
"""How long an answer that may be slow waits for a process; well below what any environment gives its reward."""
MEGABYTES = 2048
"""Address space of a process; sympy alone maps a few hundred megabytes."""
MAX_CHARS = 300
"""Longest answer that is compared."""


async def equal(answer: str, expected: str) -> bool:
    """Whether math-verify calls them equal, in time."""
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


@cache  # An absence is looked for again, since an error is not kept.
def _require() -> None:
    if find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "code", "comparing answers that are no plain numbers")


class Comparison:
    """What the processes run."""

    @staticmethod
    def load(setting: str) -> str:
        """Load math-verify, and all that it loads when it is first used."""
        import logging

        import math_verify  # type: ignore[import-untyped]

        logging.disable(logging.CRITICAL)  # It warns that its own time-outs are off.
        math_verify.verify(math_verify.parse("1", parsing_timeout=None), [], timeout_seconds=None)
        return f"{setting} is ready"

    @staticmethod
    def answer(setting: str, question: str) -> str:
        """Compare; its own time-outs use signals and run out late, so ours is the only one."""
        from math_verify import parse, verify

        found, wanted = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in json.loads(question))
        return str(bool(wanted and found) and verify(wanted, found, timeout_seconds=None))


_light, _others = LimitedProcesses(Comparison, SECONDS, MEGABYTES), LimitedProcesses(Comparison, SECONDS, MEGABYTES)
