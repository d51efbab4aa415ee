"""An event loop on its own thread, on which plain code and other event loops can start coroutines.

Left out: what the coroutines do.
"""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from palaestra.errors import Broken

T = TypeVar("T")
LEAVE_SECONDS = 2.0
"""Seconds in which cancelled work must end when the loop is closed; the closing coroutine gets as many again."""


class BackgroundLoop:
    """Runs coroutines on a thread that starts with the first one. Cancelling a waiting caller cancels its work."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._new: list[tuple[Coroutine[Any, Any, Any], Future[Any]]] = []
        """Work that the loop has not begun. The first one wakes it: a wake-up costs more than most work."""

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start work and return the future of its outcome. Cancelling the future cancels the work."""
        with self._lock:
            if self.closed:
                work.close()
                raise self._over()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self.name, daemon=True)
                self._thread.start()
            future: Future[T] = Future()
            self._new.append((work, future))
            if len(self._new) == 1:
                self._loop.call_soon_threadsafe(self._begin, self._loop)
            return future

    async def outcome(self, work: Coroutine[Any, Any, T], seconds: float, blocking: bool) -> T:
        """Run work and return its outcome. Any event loop except this one can await the call.

        If `blocking`, the call blocks its thread instead, and takes at most `seconds`: work has its own timeouts, and
        a call that takes longer shows that this loop has died.
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
            if future.done():  # The timeout of the work, not of this wait.
                raise
            raise Broken(f"{self.name}: no outcome within {seconds:g} s") from None
        finally:
            future.cancel()

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel all work, run the coroutine `last` and end the thread. Closing twice is allowed."""
        with self._lock:
            closed, self.closed = self.closed, True
        if closed or self._loop is None or self._thread is None:
            last.close()
            return
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._leave(last)))
        self._thread.join(3 * LEAVE_SECONDS)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            new, self._new = self._new, []
        for work, future in new:
            task = loop.create_task(work)
            task.add_done_callback(partial(_settle, future))
            future.add_done_callback(partial(_cancel, loop, task))

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


def _settle(future: "Future[Any]", task: "asyncio.Task[Any]") -> None:
    """Pass the outcome of a task to the future that its caller has."""
    if task.cancelled():
        future.cancel()
    if future.set_running_or_notify_cancel():
        if (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())
    elif not task.cancelled():
        task.exception()  # It is read, so that it is not reported as lost.


def _cancel(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any]", future: "Future[Any]") -> None:
    if future.cancelled() and not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
