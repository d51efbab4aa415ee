"""Finds a coroutine that keeps the event loop from running: all other episodes would wait for it.

A coroutine that awaits leaves its thread in the loop; one that blocks leaves it in a line of its own for a while. Left
out: measuring how late a loop in use was (the runner's).
"""

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

BLOCKED_SECONDS = 0.2
"""What a coroutine may compute between two awaits."""
_GLANCE = 0.01
_GLANCES = 12
"""All of them in the author's file: a single one may be of a thread that got no processor."""


def blocking_line(coroutine: Coroutine[Any, Any, Any], file: str, seconds: float) -> str:
    """Run a coroutine for at most so long; the line of `file` that blocked its loop meanwhile, or "".

    What the coroutine returns or raises is of no interest here.
    """

    def run() -> None:
        with suppress(Exception):
            asyncio.run(asyncio.wait_for(coroutine, seconds))

    thread = threading.Thread(target=run, name="palaestra-watched", daemon=True)
    thread.start()
    now = since = time.monotonic()
    until, seen = now + seconds, 0
    while thread.is_alive() and now < until:
        line = _line_in(sys._current_frames().get(thread.ident or 0), file)
        seen += 1
        if not line:
            since, seen = now, 0
        elif now - since > BLOCKED_SECONDS and seen > _GLANCES:
            return line
        time.sleep(_GLANCE)
        now = time.monotonic()
    return ""


def _line_in(frame: FrameType | None, file: str) -> str:
    """The innermost line of a file that a thread stands in."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return f"{file}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
