"""Questions whose answers may take for ever, asked in processes that are killed when they do.

What a grader computes on was written by an agent: one C call may hold a process for hours, whatever its signals and
threads. So a kind of question (a class with two static methods, `load` and `answer`) has a few processes, each with a
hard limit of time and one of memory; one that passes either is killed and replaced, and its question has no answer.
That is the agent's doing and never Broken; a process that cannot start, or cannot load what it needs, is. Answers are
kept, since the attempts of a group often repeat each other. Left out: what no answer is worth, and a sandbox: the
process has our rights, so what it is asked must not be code.
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
from palaestra.envs.running.processes import START_SECONDS, Child
from palaestra.errors import Broken

PROCESSES = min(4, os.cpu_count() or 1)
KEPT_ANSWERS = 4096


class LimitedProcesses:
    """The processes of one kind of question."""

    def __init__(self, kind: type, seconds: float, megabytes: int, kept: int = KEPT_ANSWERS) -> None:
        """`kind.load(setting)` readies a process for a setting, without counting; `kind.answer(setting, question)`
        has so many seconds, and so many megabytes of address space. So many answers are kept."""
        self.kind, self.seconds, self.megabytes, self.kept = kind, seconds, megabytes, kept
        self._kept: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        self._workers: dict[int, _Worker] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        close_at_exit(self)

    async def ask(
        self, setting: str, question: str, patience: float = math.inf, *, seconds: float = math.inf, key: str = ""
    ) -> str | None:
        """The answer, or None where it took too much or stood in line for longer than `patience` seconds.

        All texts are ASCII, such as JSON. `seconds` may be fewer than the usual ones. The answer is kept under `key`
        in place of a long question.
        """
        kept_as, seconds = (setting, key or question), min(seconds, self.seconds)
        with self._lock:
            if kept_as in self._kept:
                self._kept.move_to_end(kept_as)
                return self._kept[kept_as]
        until = time.monotonic() + patience
        try:
            answer = await asyncio.wrap_future(
                self._threads().submit(self._answered, setting, question, until, seconds)
            )
        except _TooLate:  # Nothing was found out, so nothing is kept.
            return None
        if answer is None and seconds < self.seconds:  # Another time it may have longer.
            return None
        with self._lock:
            self._kept[kept_as] = answer
            while len(self._kept) > self.kept:
                self._kept.popitem(last=False)
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
        """In a process that was forked: it has none of the threads, and the processes are not its children."""
        self._lock, self._pool = threading.Lock(), None
        for worker in self._workers.values():
            worker.child.socket.close()
            worker.child.process.returncode = 0  # Keeps Popen from complaining.
        self._workers.clear()

    def _threads(self) -> ThreadPoolExecutor:
        """A thread for each process. They stay: the kernel ends a process with the thread that started it."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(PROCESSES, f"palaestra-{self.kind.__name__}")
            return self._pool

    def _answered(self, setting: str, question: str, until: float, seconds: float) -> str | None:
        """In a thread: ask its process. One that died while it was idle is started again, once."""
        if time.monotonic() > until:
            raise _TooLate
        mine = threading.get_ident()
        for _ in range(2):
            try:
                worker = self._workers.get(mine)
                if worker is None:
                    worker = self._workers[mine] = _Worker(self.kind, self.megabytes)
                if setting not in worker.ready:
                    worker.load(setting)
                answer = worker.answer(setting, question, seconds)
                if answer is None:
                    self._workers.pop(mine).end()
                return answer
            except (_Lost, Broken) as error:
                if worker := self._workers.pop(mine, None):
                    worker.end()
                if isinstance(error, Broken):
                    raise
                lost = error
        raise Broken(f"the process of {self.kind.__name__} {lost} before it was asked anything") from lost


class _TooLate(Exception):
    """A question's turn came when nobody waited for it any longer."""


class _Lost(Exception):
    """The process is gone before it began to work: no agent's doing."""


class _Worker:
    """One process, and the settings that it is ready for."""

    def __init__(self, kind: type, megabytes: int) -> None:
        self.kind, self.megabytes = kind, megabytes
        self.ready: set[str] = set()
        try:
            self.child = Child()
        except OSError as error:
            raise Broken(f"no process could be started for {kind.__name__}: {error}") from error

    def load(self, setting: str) -> None:
        """Ready it for a setting, then bound its memory."""
        self._begin("load", setting=setting)
        try:
            found = self.child.message(time.monotonic() + START_SECONDS)
            failure = f"cannot load: {found['value'][1]}" if found["value"][0] else ""
        except (OSError, EOFError, ValueError, KeyError):
            failure = f"{self.child.ended()} as it loaded"
        if failure and self.ready:  # What it was asked before may have worn it out.
            raise _Lost(failure)
        if failure:
            raise Broken(f"the process of {self.kind.__name__} for {setting} {failure}")
        self.ready.add(setting)

    def answer(self, setting: str, question: str, seconds: float) -> str | None:
        """Its answer; None where it is out of time, or dead or short of memory by what it was asked."""
        self._begin("answer", setting=setting, question=question)
        try:
            found = self.child.message(time.monotonic() + seconds)
            failed, text = found["value"]
        except (OSError, EOFError, ValueError, KeyError):  # TimeoutError is an OSError.
            return None
        return None if failed else str(text)

    def end(self) -> None:
        self.child.kill()
        self.child.ended()

    def _begin(self, name: str, **arguments: str) -> None:
        """Send a request, up to the point where its work begins."""
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
    """In the process: what runs a kind's method; whether it failed, and what it says."""
    function = reduce(getattr, data["function"].split("."), module_of(data["module"], data["main"]))
    return partial(_run, partial(function, **data["arguments"]), data["megabytes"])


def _run(function: Callable[[], str], megabytes: int, seconds: float) -> tuple[bool, str]:
    """Bound once it has loaded, which takes more; what libraries grumble is for nobody then."""
    import resource

    try:
        said = str(function())
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, most))
        return False, said
    except Exception as error:
        return True, f"{type(error).__name__}: {error}"
