"""math-verify in processes that can be killed: a hard limit of time, one of memory, none of it in our own process.

What is compared was written by an agent and may take sympy minutes and gigabytes; a process that passes its limit is
killed, and the answers count as different. Only a process that cannot be started, or that cannot load math-verify, is
Broken. Verdicts are kept, since the attempts of a group often give the same answer.

There are two lines, so that what others wrote costs nobody a verdict, and a flood of hard answers is no way out of
one. Answers that are quick by their text (`structure.light`) have processes of their own: they wait for each other
alone, a fraction of a second each. Any other answer that has waited QUEUE_SECONDS counts as different, without being
looked at; a comparison takes SECONDS at most, from its own start. Left out: deciding what goes here (`mathematics`).
"""

import asyncio
import atexit
import math
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from palaestra.envs.core.tool import tool
from palaestra.envs.rewards import structure
from palaestra.envs.running.process_child import STARTED
from palaestra.envs.running.processes import START_SECONDS, Child
from palaestra.episode import Status
from palaestra.errors import Broken, MissingExtra

SECONDS = 2.0
"""How long one comparison may take; its time in line is not counted."""
QUEUE_SECONDS = 20.0
"""How long an answer that may be slow waits for a process; well below what any environment gives its reward."""
MEMORY_BYTES = 2 * 2**30
"""Address space of a process; sympy alone maps a few hundred megabytes."""
MAX_CHARS = 300
"""Longest answer that is compared."""
PROCESSES = min(4, os.cpu_count() or 1)
"""For each of the two lines; they start when they are needed."""
KEPT_VERDICTS = 4096

_verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()
_lock = threading.Lock()
_pools: dict[bool, ThreadPoolExecutor] = {}
"""The line of the answers that are light, and that of the others."""
_children: dict[int, Child] = {}
"""The process of each thread of the pools."""


async def equal(answer: str, expected: str) -> bool:
    """Whether math-verify calls them equal, in time."""
    if max(len(answer), len(expected)) > MAX_CHARS:
        return False
    key = (answer, expected)
    with _lock:
        if key in _verdicts:
            _verdicts.move_to_end(key)
            return _verdicts[key]
    if find_spec("math_verify") is None:
        raise MissingExtra("math-verify", "code", "comparing answers that are no plain numbers")
    light = structure.light(answer)
    until = math.inf if light else time.monotonic() + QUEUE_SECONDS
    verdict = await asyncio.wrap_future(_threads(light).submit(_compared, answer, expected, until))
    if verdict is None:  # Nothing was found out, so nothing is kept.
        return False
    with _lock:
        _verdicts[key] = verdict
        while len(_verdicts) > KEPT_VERDICTS:
            _verdicts.popitem(last=False)
    return verdict


class _Comparison:
    """What the process runs; these are called there by name, through the same door as tools that run in processes."""

    @tool(process=True, timeout=START_SECONDS)
    def load(self, megabytes: int) -> str:
        """Load math-verify, then bound the memory."""
        import logging
        import resource

        import math_verify  # type: ignore[import-untyped]

        logging.disable(logging.CRITICAL)  # It warns that its own time-outs are off.
        math_verify.verify(math_verify.parse("1", parsing_timeout=None), [], timeout_seconds=None)
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, megabytes * 2**20))
        return "ready"

    @tool(process=True, timeout=SECONDS)
    def compare(self, answer: str, expected: str) -> str:
        """Compare; its own time-outs use signals and run out late, so ours is the only one."""
        from math_verify import parse, verify

        wanted, found = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (expected, answer))
        return str(bool(wanted and found) and verify(wanted, found, timeout_seconds=None))


class _Lost(Exception):
    """The process is gone before it was asked anything: no agent's doing."""


def _compared(answer: str, expected: str, until: float) -> bool | None:
    """In a thread of a pool: ask its process. One that died while it was idle is started again, once.

    None where its turn came after `until`.
    """
    if time.monotonic() > until:
        return None
    for _ in range(2):
        try:
            child = _children.get(threading.get_ident())
            if child is None:
                child = _children[threading.get_ident()] = _started()
            return _ask(child, answer, expected)
        except _Lost as error:
            lost = error
            _forget()
    raise Broken(f"the process of math-verify is gone: {lost}") from lost


def _started() -> Child:
    try:
        child = Child()
    except OSError as error:
        raise Broken(f"no process could be started for math-verify: {error}") from error
    try:
        _hand_over(child, "load", {"megabytes": MEMORY_BYTES // 2**20})
        found = child.message(time.monotonic() + START_SECONDS)
    except (OSError, EOFError, ValueError, _Lost) as error:
        raise Broken(f"the process of math-verify {child.ended()} as it started ({type(error).__name__})") from error
    if found.get("status") != Status.OK:
        child.ended()
        raise Broken(f"math-verify cannot be loaded: {found.get('text')}")
    return child


def _ask(child: Child, answer: str, expected: str) -> bool:
    _hand_over(child, "compare", {"answer": answer, "expected": expected})
    try:
        found = child.message(time.monotonic() + SECONDS)
    except (OSError, EOFError, ValueError):  # Out of time, or dead of what it was asked; TimeoutError is an OSError.
        _forget()
        return False
    return found.get("status") == Status.OK and found.get("text") == "True"


def _hand_over(child: Child, name: str, arguments: dict[str, object]) -> None:
    """Send a request, up to the point where its work begins."""
    request = {
        "module": __name__, "function": f"{_Comparison.__qualname__}.{name}", "attribute": name,
        "owner": _Comparison.__name__, "name": name, "arguments": arguments,
    }  # fmt: skip
    try:
        child.send(request, START_SECONDS)
        if child.receive(1, time.monotonic() + START_SECONDS) != STARTED:
            raise Broken(f"the process of math-verify: {child.message(time.monotonic() + START_SECONDS).get('text')}")
    except (OSError, EOFError, ValueError) as error:
        raise _Lost(type(error).__name__) from error


def _forget() -> None:
    child = _children.pop(threading.get_ident(), None)
    if child is not None:
        child.kill()
        child.ended()


def close() -> None:
    """End the processes; the next comparison starts others."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.shutdown()
    while _children:
        _, child = _children.popitem()
        child.kill()
        child.ended()


def _threads(light: bool) -> ThreadPoolExecutor:
    """A line's threads; the kernel ends a process with the thread that started it, so they stay."""
    with _lock:
        if light not in _pools:
            _pools[light] = ThreadPoolExecutor(PROCESSES, "palaestra-math")
        return _pools[light]


def _after_fork() -> None:
    """A forked copy of us has none of the threads, and the processes are not its children."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()
    for child in _children.values():
        child.socket.close()
        child.process.returncode = 0  # Keeps Popen from complaining.
    _children.clear()


atexit.register(close)
os.register_at_fork(after_in_child=_after_fork)
