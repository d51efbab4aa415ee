"""Finds code that makes other episodes wait: it blocks an event loop, or computes for long in the thread of all
episodes.

Left out: running jobs on a loop (`loop`).
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
HELD_SECONDS = 0.2
"""Seconds for which code may delay other jobs before it is reported."""
ADVICE = (
    "and every other episode waits for it; write @tool(blocking=True) above it, or make it an async def that awaits"
)
_GLANCE_SECONDS = 0.01
_GLANCES = 12
"""Number of checks in a row in which code must make no progress; with fewer, it may only have lacked a processor."""
_TWICE = 2
"""Number of slow calls before the warning: a single one may be a short pause of the machine."""

log = logging.getLogger("palaestra.envs")
_slow: dict[tuple[str, str], int] = {}


def note_slow(name: str, where: str, seconds: float) -> None:
    """Record that a call of the plain tool `name` of the class `where` took longer than HELD_SECONDS; warn at the
    second."""
    times = _slow[where, name] = _slow.get((where, name), 0) + 1
    if times == _TWICE:
        log.warning("the plain tool %r of %s took %.1f s, %s (said once)", name, where, seconds, ADVICE)


def still(glance: Callable[[], T | None], runs: Callable[[], bool]) -> T | None:
    """Call `glance` again and again. Return its value once it was never None for HELD_SECONDS; return None as soon as
    `runs` is False."""
    since, glances = time.monotonic(), 0
    while runs():
        value, now = glance(), time.monotonic()
        glances += 1
        if value is None:
            since, glances = now, 0
        elif now - since > HELD_SECONDS and glances > _GLANCES:
            return value
        time.sleep(_GLANCE_SECONDS)
    return None


def frames(thread: threading.Thread) -> Iterator[FrameType]:
    """Yield the frames of the code that a thread runs, the innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def blocking_line(coroutine: Coroutine[Any, Any, Any], file: str, seconds: float) -> str:
    """Run a coroutine for at most `seconds` and return the line of `file` that blocked its loop, or "".

    While the coroutine awaits, its thread runs code of the event loop; while it blocks, the thread stays in `file`. The
    result of the coroutine and its exceptions are ignored.
    """

    def run() -> None:
        with suppress(Exception):
            asyncio.run(asyncio.wait_for(coroutine, seconds))

    def line() -> str | None:
        numbers = [frame.f_lineno for frame in frames(thread) if frame.f_code.co_filename == file]
        return f"{file}, line {numbers[0]}" if numbers else None

    until = time.monotonic() + seconds
    thread = threading.Thread(target=run, name="palaestra-watched", daemon=True)
    thread.start()
    return still(line, lambda: thread.is_alive() and time.monotonic() < until) or ""
