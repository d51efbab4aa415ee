"""One run: a program handed to a process that waits for orders, its output read, its time kept, its end told.

Steps are generators: `yield deadline` means, wake me when something changed, or at this time. What is not here: where
the process comes from (`sessions`), and what the numbers mean (`measures`).
"""

import os
import signal
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from . import orders
from .cells import Loop, Message, Place, Process, Waiter, Zygote
from .cgroups import Group
from .measures import Meters
from .orders import Order
from .output import Pipe
from .watching import tree, watched_memory

GRACE_SECONDS = 0.3
"""Between the interrupt at the time limit, which keeps the variables, and the kill."""
DEATH_SECONDS = 30.0
"""For what was killed to be gone: gigabytes take their time."""
UNREAD_SECONDS = 0.002
"""Before what a program prints is read: a flood waits that long at its beginning."""
WATCH_SECONDS = 0.1
"""How often memory is looked at where no control group counts it."""

Reply = tuple[Message, tuple[bytes, ...]]
Steps = Generator[float, None, Any]


class Failure(Exception):
    """What a request came to where it came to nothing: `kind` is "broken", "usage" or "os"."""

    def __init__(self, kind: str, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.kind, self.number = kind, number


class Host(Loop, Protocol):
    """The supervisor, as sessions and runs see it."""

    namespaces: bool

    def zygote(self, name: str) -> Zygote: ...
    def place(self, zygote: Zygote, kind: str, limits: Message, waiter: Waiter, group: Group | None) -> Place: ...
    def group(self, limits: Message) -> Group | None: ...
    def bury(self, group: Group | None) -> None: ...


class Asked(NamedTuple):
    """A run, as it was asked for."""

    kind: str
    program: bytes
    stdin: bytes
    timeout: float
    show_last: bool


def asked(header: Message, body: bytes) -> Asked:
    size = int(header["program_size"])
    if header["kind"] not in ("python", "argv"):
        raise Failure("usage", f"a program's kind is {header['kind']!r}; expected python or argv")
    return Asked(header["kind"], body[:size], body[size:], float(header["timeout"]), bool(header.get("show_last")))


def until(condition: Callable[[], object], deadline: float) -> Generator[float, None, bool]:
    """Wait for a condition; False where the deadline came first."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        yield deadline
    return True


class Run:
    """One program in one process."""

    def __init__(self, host: Host, place: Place, process: Process, group: Group | None, counted: list[int]) -> None:
        self._host, self._place, self._process, self._group = host, place, process, group
        self._limits = place.limits
        self._meters = Meters(process, group, counted, float(self._limits["cpu_seconds"]))

    def go(self, wanted: Asked, number: int, over: Callable[[], bool]) -> Generator[float, None, Reply]:
        """To its end, or to the end of its time."""
        cap = int(self._limits["output_bytes"])
        out, err = Pipe(cap), Pipe(cap)
        began = time.monotonic()
        try:
            self._hand_over(wanted, number, out, err)
            # Most runs are over before anything needs to be read: a pipe holds what they print.
            ended = yield from until(over, began + min(UNREAD_SECONDS, wanted.timeout))
            if not ended:
                for pipe in (out, err):
                    self._host.watch(pipe.reading, _reader(self._host, pipe))
                ended = yield from self._waited(over, began + wanted.timeout)
            if not ended:
                yield from self._stop(wanted.kind, over)
            duration = time.monotonic() - began
            if self._place.broken:
                raise Failure("broken", self._place.broken)
            if self._process.refused:
                raise Failure("broken", f"the walls of a session could not be built: {self._process.refused}")
            out.drain()
            err.drain()
            result, value = self._meters.result(not ended, out, err, self._full)
            result["duration_s"] = duration
            texts = out.kept.text(), err.kept.text(), value or b""
            sizes = {"stdout_size": len(texts[0]), "stderr_size": len(texts[1])}
            sizes["value_size"] = -1 if value is None else len(value)
            return {"result": result, **sizes}, texts
        finally:
            for pipe in (out, err):
                self._host.unwatch(pipe.reading)
                pipe.close()

    def _hand_over(self, wanted: Asked, number: int, out: Pipe, err: Pipe) -> None:
        kind = orders.ARGV
        if wanted.kind == "python":
            kind = orders.SCRIPT if self._place.kind == "once" else orders.RUN
        most = int(self._limits["output_bytes"])
        order = Order(kind, wanted.program, number, most, wanted.show_last, bool(wanted.stdin))
        mine: list[int] = []
        try:
            in_file = len(wanted.program) > orders.INLINE_BYTES
            if in_file:
                mine.append(orders.memory_file(wanted.program))
            if order.has_stdin:
                mine.append(orders.memory_file(wanted.stdin))
            self._process.tell(orders.pack(order, in_file), *mine, out.writing, err.writing)
        finally:
            for descriptor in mine:
                os.close(descriptor)
            out.given()
            err.given()

    def _waited(self, over: Callable[[], bool], deadline: float) -> Generator[float, None, bool]:
        """Wait for the end of a run; where nobody counts memory, look at it now and then."""
        if self._group is not None or not self._host.namespaces:
            return (yield from until(over, deadline))
        while not (yield from until(over, min(deadline, time.monotonic() + WATCH_SECONDS))):
            if time.monotonic() >= deadline:
                return False
            if watched_memory(tree(self._place.first.pid)) > int(self._limits["memory_bytes"]):
                self._process.kill()
                self._place.tell({"op": "sweep"})
                yield from until(lambda: self._process.died is not None, time.monotonic() + DEATH_SECONDS)
                if self._process.died is not None:
                    self._process.died["watched"] = True
        return True

    def _stop(self, kind: str, over: Callable[[], bool]) -> Steps:
        """Time is up: interrupt, so that a session keeps its variables; then kill."""
        now = time.monotonic()
        if kind == "python":
            self._process.kill(signal.SIGINT)
            if (yield from until(over, now + GRACE_SECONDS)):
                return
        self._process.kill()
        if not (yield from until(lambda: self._process.died is not None, now + DEATH_SECONDS)):
            raise Failure("broken", f"a process did not die within {DEATH_SECONDS:.0f} s of being killed")

    def _full(self) -> bool:
        """The scratch folders are full, in bytes or in files."""
        if self._place.folder < 0 or not self._host.namespaces:
            return False
        found = os.statvfs(self._place.folder)
        return found.f_bavail == 0 or found.f_favail == 0


def _reader(host: Host, pipe: Pipe) -> Callable[[], None]:
    def read() -> None:
        if not pipe.read():
            host.unwatch(pipe.reading)

    return read
