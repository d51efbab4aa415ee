"""math-verify in processes of its own: what agents may box ends in time, and the processes are replaced."""

import asyncio
import threading
import time

import pytest

from palaestra.envs.rewards import limited_processes, symbolic
from palaestra.envs.rewards.mathematics import same

pytestmark = pytest.mark.prove

HOSTILE = (
    "(" * 60 + "1" + ")" * 60,
    "+".join(f"x^{{{n}}}y" for n in range(40)),
    "(x+y+z+w)^{60}",
    r"\int x^{x^{x^{x}}} dx",
    "10^{10^{10}}",
    "((10^8)!)!",
    "9^{9^{9^{9}}}",
    r"\sum_{n=1}^{10^{12}} \frac{1}{n^{n}}",
    r"\lim_{x \to 0} \sin(\tan(x))^{x^{x}}",
    r"\prod_{n=1}^{10^9} (x + n)",
    "\\sqrt{" * 40 + "2" + "}" * 40,
    r"\text{" * 20,
    "__import__('os').system('touch /tmp/palaestra_was_here')",
)


@pytest.fixture(scope="module", autouse=True)
def processes():
    yield
    symbolic.close()


MOST_SECONDS = 120.0
"""For a process to start and a comparison to end, on a machine that is busy with others. Left alone, most of these
would take hours.
"""


@pytest.fixture
def ample(monkeypatch):
    """Comparisons that are quick by their text have the time that such a machine takes."""
    monkeypatch.setattr(symbolic._light, "seconds", MOST_SECONDS)
    symbolic._light._cache.clear()


@pytest.mark.usefixtures("ample")
@pytest.mark.parametrize("answer", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_expression_ends_in_time_and_the_next_comparison_is_served(answer):
    begun = time.monotonic()
    assert asyncio.run(same(answer, r"\sqrt{7}+x")) is False
    assert time.monotonic() - begun < MOST_SECONDS
    symbolic._others._cache.clear()
    assert asyncio.run(same(r"2\sqrt{2}", r"\sqrt{8}"))


def test_many_hostile_expressions_at_once_are_compared_in_as_many_processes_as_there_are(monkeypatch):
    at_once, most, lock, answered = 0, 0, threading.Lock(), symbolic._others._answered

    def counted(*asked):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        try:
            return answered(*asked)
        finally:
            with lock:
                at_once -= 1

    async def all_of_them():
        return await asyncio.gather(*(same("(" * 60 + f"{n}" + ")" * 60, r"\sqrt{7}") for n in range(8)))

    monkeypatch.setattr(symbolic._others, "_answered", counted)
    begun = time.monotonic()
    assert not any(asyncio.run(all_of_them()))
    assert most == limited_processes.PROCESSES
    assert time.monotonic() - begun < 8 / limited_processes.PROCESSES * MOST_SECONDS
