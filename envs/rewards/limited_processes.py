"""Computes answers that may take forever in separate processes, which are killed when they take too long.

A grader's input was written by an agent: one C call on it may run for hours, and neither a signal nor a thread can stop
it. So each kind of question (a class with two static methods, `load` and `answer`) has a few processes with hard limits
of time and memory. A process that exceeds a limit is killed and replaced, and its question has no answer. This is the
agent's fault and never `Broken`; `Broken` is raised if a process cannot start or cannot load what it needs. Answers are
cached, because the attempts of a group often repeat each other. Left out: the score of a missing answer, and a sandbox:
the process has our rights, so a question must not be code.
"""

import asyncio
import logging
import math
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Any

from palaestra.envs.running.lifetime import close_at_exit
from palaestra.envs.running.process_child import STARTED, main_file, module_of
from palaestra.envs.running.processes import START_SECONDS, WorkerProcess
from palaestra.errors import Broken

PROCESSES = min(4, os.cpu_count() or 1)
CACHED_ANSWERS = 4096


class LimitedProcesses:
    """The processes of one kind of question."""

    def __init__(self, kind: type, seconds: float, megabytes: int, cached: int = CACHED_ANSWERS) -> None:
        """Set the limits: `kind.answer(setting, question)` has `seconds` and `megabytes` of address space, while
        `kind.load(setting)`, which prepares a process for a setting, is not limited. `cached` answers are kept."""
        self.kind, self.seconds, self.megabytes, self.cached = kind, seconds, megabytes, cached
        self._cache: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        self._workers: dict[int, _Worker] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        close_at_exit(self)

    async def ask(
        self, setting: str, question: str, patience: float = math.inf, *, seconds: float = math.inf, key: str = ""
    ) -> str | None:
        """Return the answer, or None if it exceeded a limit or was queued for longer than `patience` seconds.

        All texts are ASCII, such as JSON. `seconds` may lower the time limit. `key` replaces a long question in the
        cache.
        """
        cache_key, seconds = (setting, key or question), min(seconds, self.seconds)
        with self._lock:
            if cache_key in self._cache:
                self._cache.move_to_end(cache_key)
                return self._cache[cache_key]
        until = time.monotonic() + patience
        try:
            answer = await asyncio.wrap_future(
                self._threads().submit(self._answered, setting, question, until, seconds)
            )
        except _TooLate:  # There is no result to cache.
            return None
        if answer is None and seconds < self.seconds:  # A later request may allow more seconds.
            return None
        with self._lock:
            self._cache[cache_key] = answer
            while len(self._cache) > self.cached:
                self._cache.popitem(last=False)
        return answer

    def close(self) -> None:
        """End the processes; the next question starts others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        while self._workers:
            self._workers.popitem()[1].end()

    def forget(self) -> None:
        """Forget threads and processes in a forked child: it has no such threads, and its parent has the processes."""
        self._lock, self._pool = threading.Lock(), None
        for worker in self._workers.values():
            worker.child.socket.close()
            worker.child.process.returncode = 0  # Keeps Popen from complaining.
        self._workers.clear()

    def _threads(self) -> ThreadPoolExecutor:
        """Return the pool with one thread for each process.

        No thread may end, because the kernel then kills its process.
        """
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(PROCESSES, f"palaestra-{self.kind.__name__}")
            return self._pool

    def _answered(self, setting: str, question: str, until: float, seconds: float) -> str | None:
        """Ask the process of this thread. A process that died while it was idle is started again, once."""
        if time.monotonic() > until:
            raise _TooLate
        thread_id = threading.get_ident()
        for _ in range(2):
            try:
                worker = self._workers.get(thread_id)
                if worker is None:
                    worker = self._workers[thread_id] = _Worker(self.kind, self.megabytes)
                if setting not in worker.ready:
                    worker.load(setting)
                answer = worker.answer(setting, question, seconds)
                if answer is None:
                    self._workers.pop(thread_id).end()
                return answer
            except (_Lost, Broken) as error:
                if worker := self._workers.pop(thread_id, None):
                    worker.end()
                if isinstance(error, Broken):
                    raise
                lost = error
        raise Broken(f"the process of {self.kind.__name__} {lost} before it was asked anything") from lost


class _TooLate(Exception):
    """Raised for a question that was queued for longer than its caller's patience."""


class _Lost(Exception):
    """Raised if the process ended before it began to work, which is not the agent's fault."""


class _Worker:
    """One process, and the settings for which it is ready."""

    def __init__(self, kind: type, megabytes: int) -> None:
        self.kind, self.megabytes = kind, megabytes
        self.ready: set[str] = set()
        try:
            self.child = WorkerProcess()
        except OSError as error:
            raise Broken(f"no process could be started for {kind.__name__}: {error}") from error

    def load(self, setting: str) -> None:
        """Load what questions of this setting need into the process, then limit the process's memory."""
        self._begin("load", setting=setting)
        try:
            message = self.child.message(time.monotonic() + START_SECONDS)
            failure = f"cannot load: {message['value'][1]}" if message["value"][0] else ""
        except (OSError, EOFError, ValueError, KeyError):
            failure = f"{self.child.ended()} as it loaded"
        if failure and self.ready:  # Earlier questions may have used up its memory.
            raise _Lost(failure)
        if failure:
            raise Broken(f"the process of {self.kind.__name__} for {setting} {failure}")
        self.ready.add(setting)

    def answer(self, setting: str, question: str, seconds: float) -> str | None:
        """Return the answer; None if the question took too long, ended the process or used too much memory."""
        self._begin("answer", setting=setting, question=question)
        try:
            message = self.child.message(time.monotonic() + seconds)
            failed, text = message["value"]
        except (OSError, EOFError, ValueError, KeyError):  # TimeoutError is an OSError.
            return None
        return None if failed else str(text)

    def end(self) -> None:
        self.child.kill()
        self.child.ended()

    def _begin(self, name: str, **arguments: str) -> None:
        """Send a request and wait until its work begins."""
        kind, function = self.kind, f"{self.kind.__qualname__}.{name}"
        data = {"module": kind.__module__, "function": function, "main": main_file(), "megabytes": self.megabytes}
        request = {"function": f"{__name__}:begin", "data": {**data, "arguments": arguments}, "seconds": START_SECONDS}
        until = time.monotonic() + START_SECONDS
        try:
            self.child.send(request, START_SECONDS)
            if self.child.receive(1, until) != STARTED:
                raise Broken(f"the process of {kind.__name__} cannot begin: {self.child.message(until).get('fault')}")
        except (OSError, EOFError, ValueError) as error:
            raise _Lost(self.child.ended()) from error


def begin(data: Mapping[str, Any]) -> Callable[[float], tuple[bool, str]]:
    """Return the function that runs a method of a kind in this process.

    That function returns (failed, result or error).
    """
    function = reduce(getattr, data["function"].split("."), module_of(data["module"], data["main"]))
    return partial(_run, partial(function, **data["arguments"]), data["megabytes"])


def _run(function: Callable[[], str], megabytes: int, seconds: float) -> tuple[bool, str]:
    """Run a function, then limit memory (loading takes more than answering), and turn off libraries' warnings."""
    import resource

    try:
        result = str(function())
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, hard_limit))
        return False, result
    except Exception as error:
        return True, f"{type(error).__name__}: {error}"
