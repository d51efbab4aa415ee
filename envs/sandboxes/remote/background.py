"""An event loop on a thread of its own, for what is asked both from plain code and from other event loops.

Left out: what runs on it.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from palaestra.errors import Broken

T = TypeVar("T")
_CLOSED = "the sandbox is closed"
_LEAVING = 2.0
"""Seconds in which cancelled work must end when the loop is closed."""


class Background:
    """Starts with its first work. Whoever waits for work can be cancelled, and the work with it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start work; its outcome comes later."""
        with self._lock:
            if self._closed:
                work.close()
                raise Broken(_CLOSED)
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Do work from plain code. It has deadlines of its own; `seconds` is for a loop that has died."""
        future = self.submit(work)
        try:
            return future.result(seconds)
        except concurrent.futures.CancelledError:
            raise Broken(_CLOSED) from None
        except TimeoutError:
            if future.done():  # Its own, not ours.
                raise
            raise Broken(f"no outcome within {seconds:g} s") from None
        finally:
            future.cancel()

    async def join(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work from any event loop."""
        future = self.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Broken(_CLOSED) from None

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel all work, do the `last` and end the thread."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed or self._loop is None or self._thread is None:
            last.close()
            return
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._leave(last)))
        self._thread.join(3 * _LEAVING)

    async def _leave(self, last: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=_LEAVING)
            await asyncio.wait_for(last, _LEAVING)
        except TimeoutError:
            pass
        finally:
            loop.stop()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()
