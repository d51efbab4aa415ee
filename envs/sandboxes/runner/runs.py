"""One run: it sends a program to a waiting process, reads the output, limits the time, and returns the result.

Steps are generators: `yield deadline` waits until something has changed, or until this time of the monotonic clock.
`sessions` provides the process, and `measures` computes the result.
"""

import os
import signal
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from . import orders, wire
from .cells import Cell, Host, Process
from .cgroups import Cgroup
from .measures import Meters, is_full
from .output import Outputs, Pipe
from .watching import tree, watched_memory

GRACE_SECONDS = 0.3
"""Seconds between the interrupt at the time limit, which keeps the variables, and the kill."""
SLICES = 6
"""Number of checks of the clock in that time."""
DEATH_SECONDS = 30.0
"""Seconds for killed processes to end: freeing gigabytes takes time."""
UNREAD_SECONDS = 0.005
"""Seconds before a program's output is first read; a program that floods its output waits so long at its beginning."""
WATCH_SECONDS = 0.1
"""Seconds between two checks of the memory, if no control group counts it."""
LOOK_SECONDS = 0.5
"""Seconds between two checks of a session's CPU time."""

RunReply = tuple[wire.FrameHead, tuple[bytes, ...]]
RunSteps = Generator[float, None, Any]


class Failure(Exception):
    """Raised if a request fails; `kind` is "broken", "usage" or "os"."""

    def __init__(self, kind: str, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.kind, self.number = kind, number


class RunRequest(NamedTuple):
    """A run that a client requests."""

    command: bool
    program: bytes
    stdin: bytes
    timeout: float
    show_last: bool


def read_run(head: bytes, body: bytes) -> RunRequest:
    if len(head) != wire.RUN.size:
        raise Failure("usage", f"a request of a run has {len(head)} bytes; expected {wire.RUN.size}")
    command, show_last, seconds, size = wire.RUN.unpack(head)
    return RunRequest(command, body[:size], body[size:], seconds, show_last)


def until(condition: Callable[[], object], deadline: float) -> Generator[float, None, bool]:
    """Wait for a condition and return True; return False if the deadline comes first."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        yield deadline
    return True


class ProgramRun:
    """One run of a program in one process."""

    def __init__(self, host: Host, cell: Cell, process: Process, group: Cgroup | None, meters: Meters) -> None:
        self._host, self._cell, self._process, self._group = host, cell, process, group
        self._limits, self._meters = cell.limits, meters
        if process.outputs is None:
            process.outputs = Outputs(int(self._limits["output_bytes"]), cell.user)
        self.outputs = process.outputs
        self.leaves_nothing = False
        """Whether, at the end of the run, its process lives, has one thread, and is alone in its group."""

    def go(self, request: RunRequest, number: int = 0, lost: bool = False) -> Generator[float, None, RunReply]:
        """Run the program until it ends or its time is over.

        `lost` is True if the session has already lost its variables.
        """
        process, outputs, reusable = self._process, self.outputs, False
        began = time.monotonic()
        self._meters.begin(process)
        try:
            stays = self._hand_over(request, number)
            # Most runs are over before anything needs to be read: a pipe holds what they print.
            ended = yield from until(process.done, began + min(UNREAD_SECONDS, request.timeout))
            if not ended:
                for pipe in outputs.both:
                    self._host.watch(pipe.reading, partial(self._read, pipe))
                ended = yield from self._waited(began + request.timeout)
                if not ended:
                    yield from self._stop(request.command)
                for pipe in outputs.both:
                    self._host.unwatch(pipe.reading)
            duration = time.monotonic() - began
            if self._cell.broken:
                raise Failure("broken", self._cell.broken)
            if process.refused:
                raise Failure("broken", f"the walls of a session could not be built: {process.refused}")
            # Nobody else holds the pipes, unless another branch of the same agent opened them by name: so nothing of
            # others can come into them before the next run begins.
            self.leaves_nothing = process.died is None and self._group is not None and self._group.alone()
            reusable = self.leaves_nothing and process.reply[len(process.awaited) + 1 :][:1] == b"\1"
            for pipe in outputs.both:
                pipe.drain()
            lost = lost or (stays and process.died is not None)
            return self._meters.result(process, not ended, lost, duration, outputs, self._full)
        finally:
            if not reusable:
                process.close_outputs()

    def _hand_over(self, request: RunRequest, number: int) -> bool:
        """Send the program. Return True if the process continues after the run and reports its end."""
        kind = orders.ARGV if request.command else orders.SCRIPT if self._cell.kind == "once" else orders.RUN
        process, token = self._process, os.urandom(orders.TOKEN_BYTES)
        process.awaits(orders.DONE + token if kind == orders.RUN else b"")
        value_bytes = min(self.outputs.cap, orders.VALUE_BYTES)
        order = orders.ConsoleCommand(
            kind, request.program, number, value_bytes, request.show_last, bool(request.stdin), token
        )
        self.outputs.begin()
        writing_ends = [pipe.writing for pipe in self.outputs.both if pipe.writing >= 0]
        memory_files: list[int] = []
        try:
            if len(request.program) > orders.INLINE_BYTES:
                memory_files.append(orders.memory_file(request.program))
            if request.stdin:
                memory_files.append(orders.memory_file(request.stdin))
            process.tell(order.packed(), *memory_files, *writing_ends)
        finally:
            for descriptor in memory_files:
                os.close(descriptor)
            for pipe in self.outputs.both:
                pipe.close_writing_end()
        return kind == orders.RUN

    def _waited(self, deadline: float) -> Generator[float, None, bool]:
        """Wait for the end of a run and return True; return False at the deadline.

        Meanwhile check its CPU time and memory.
        """
        process, cell = self._process, self._cell
        if not self._host.namespaces:
            return (yield from until(process.done, deadline))
        pause = LOOK_SECONDS if self._group is not None else WATCH_SECONDS
        while not (yield from until(process.done, min(deadline, time.monotonic() + pause))):
            if time.monotonic() >= deadline:
                return False
            beyond = "cpu_seconds" if self._meters.over_cpu_limit(cell) else ""
            if self._group is None and watched_memory(tree(cell.first.pid)) > int(self._limits["memory_bytes"]):
                beyond = "memory"
            if beyond:
                process.kill()
                cell.sweep(self._group)
                yield from until(lambda: process.died is not None, time.monotonic() + DEATH_SECONDS)
                if process.died is not None:
                    process.died["beyond"] = beyond
        return True

    def _stop(self, command: bool) -> RunSteps:
        """Interrupt a run at its time limit, so that a session keeps its variables; then kill it."""
        now = time.monotonic()
        if not command:
            self._process.kill(signal.SIGINT)
            if (yield from self._ends_in_grace()):
                return
        self._process.kill()
        if not (yield from until(lambda: self._process.died is not None, now + DEATH_SECONDS)):
            raise Failure("broken", f"a process did not die within {DEATH_SECONDS:.0f} s of being killed")

    def _ends_in_grace(self) -> RunSteps:
        """Return whether the process ends by itself in time.

        Time in which the whole machine was stopped does not count.
        """
        piece, counted = GRACE_SECONDS / SLICES, 0.0
        while counted < GRACE_SECONDS:
            start = time.monotonic()
            if (yield from until(self._process.done, start + piece)):
                return True
            counted += min(time.monotonic() - start, 1.5 * piece)
        return False

    def _full(self) -> bool:
        return self._cell.folder >= 0 and is_full(self._cell)

    def _read(self, pipe: Pipe) -> None:
        if pipe.read() == 0:
            self._host.unwatch(pipe.reading)
