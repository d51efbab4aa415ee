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
LEAVE_SECONDS = 2.0
"""In which cancelled work must end when the loop is closed, and then again what is done last."""


class BackgroundLoop:
    """Starts with its first work. Whoever waits for work can be cancelled, and the work with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start work; its outcome comes later. Cancelling the future cancels the work."""
        with self._lock:
            if self.closed:
                work.close()
                raise self._over()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self.name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def outcome(self, work: Coroutine[Any, Any, T], seconds: float, blocking: bool) -> T:
        """Do work, which has deadlines of its own: `seconds` is for a loop that has died.

        If `blocking`, it blocks this thread and awaits nothing; if not, it is for any event loop but this one.
        """
        future = self.submit(work)
        try:
            if blocking:
                return future.result(seconds)
            return await asyncio.wrap_future(future)
        except concurrent.futures.CancelledError:
            raise self._over() from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._over() from None
        except TimeoutError:
            if future.done():  # Its own, not ours.
                raise
            raise Broken(f"{self.name}: no outcome within {seconds:g} s") from None
        finally:
            future.cancel()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel all work, do the `last` and end the thread. May come twice."""
        with self._lock:
            closed, self.closed = self.closed, True
        if closed or self._loop is None or self._thread is None:
            last.close()
            return
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._leave(last)))
        self._thread.join(3 * LEAVE_SECONDS)

    async def _leave(self, last: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
            await asyncio.wait_for(last, LEAVE_SECONDS)
            await asyncio.sleep(0.01)  # Transports close their sockets one round of the loop later.
        except TimeoutError:
            pass
        finally:
            loop.stop()

    def _over(self) -> Broken:
        return Broken(f"{self.name} is closed")

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()
