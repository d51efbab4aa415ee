"""Detecting a coroutine that blocks the event loop, so that all other episodes would wait for it.

While a coroutine awaits, its thread is in the loop; while it blocks, the thread stays in a line of the coroutine. Left
out: measuring the delay of a loop in use (the runner does that).
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
"""Seconds that a coroutine may compute between two awaits."""
_GLANCE = 0.01
_GLANCES = 12
"""Looks at the thread that must all be in the author's file: in a single one it may only lack processor time."""


def blocking_line(coroutine: Coroutine[Any, Any, Any], file: str, seconds: float) -> str:
    """Run a coroutine for at most `seconds` and return the line of `file` that blocked its loop, or "".

    The result of the coroutine and its exceptions are ignored.
    """

    def run() -> None:
        with suppress(Exception):
            asyncio.run(asyncio.wait_for(coroutine, seconds))

    thread = threading.Thread(target=run, name="palaestra-watched", daemon=True)
    thread.start()
    now = since = time.monotonic()
    until, glances = now + seconds, 0
    while thread.is_alive() and now < until:
        line = _line_in(sys._current_frames().get(thread.ident or 0), file)
        glances += 1
        if not line:
            since, glances = now, 0
        elif now - since > BLOCKED_SECONDS and glances > _GLANCES:
            return line
        time.sleep(_GLANCE)
        now = time.monotonic()
    return ""


def _line_in(frame: FrameType | None, file: str) -> str:
    """Return the innermost line of a file in the stack of a thread; "" where the file is not in it."""
    while frame is not None:
        if frame.f_code.co_filename == file:
            return f"{file}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
