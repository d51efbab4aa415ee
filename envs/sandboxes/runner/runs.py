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
from .cells import Loop, Message, Place, Process, Waiter
from .cgroups import Group
from .measures import Meters
from .orders import Order
from .output import Pipe
from .watching import tree, watched_memory
from .zygotes import Zygote

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

    mode: str
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

    def __init__(self, host: Host, place: Place, process: Process, group: Group | None, meters: Meters) -> None:
        self._host, self._place, self._process, self._group = host, place, process, group
        self._limits, self._meters = place.limits, meters

    def go(self, wanted: Asked, number: int, over: Callable[[], object]) -> Generator[float, None, Reply]:
        """To its end, or to the end of its time."""
        process, reusable = self._process, False
        began = time.monotonic()
        self._meters.begin(process)
        try:
            out, err = self._hand_over(wanted, number)
            # Most runs are over before anything needs to be read: a pipe holds what they print.
            ended = yield from until(over, began + min(UNREAD_SECONDS, wanted.timeout))
            if not ended:
                for pipe in (out, err):
                    self._host.watch(pipe.reading, _reader(self._host, pipe))
                ended = yield from self._waited(over, began + wanted.timeout)
                if not ended:
                    yield from self._stop(wanted.kind, over)
                for pipe in (out, err):
                    self._host.unwatch(pipe.reading)
            duration = time.monotonic() - began
            if self._place.broken:
                raise Failure("broken", self._place.broken)
            if process.refused:
                raise Failure("broken", f"the walls of a session could not be built: {process.refused}")
            # Nobody else can hold them, so nothing can come into them before the next run begins.
            intact = process.died is None and process.reply[len(process.awaited) + 1 :][:1] == b"\1"
            reusable = intact and self._group is not None and self._group.alone()
            out.drain()
            err.drain()
            result, value = self._meters.result(process, not ended, duration, (out.kept, err.kept), self._full)
            texts = out.kept.text(), err.kept.text(), value or b""
            value_size = -1 if value is None else len(value)
            sizes = {"stdout_size": len(texts[0]), "stderr_size": len(texts[1]), "value_size": value_size}
            return {"result": result, **sizes}, texts
        finally:
            if not reusable:
                process.drop_outputs()

    def _hand_over(self, wanted: Asked, number: int) -> tuple[Pipe, Pipe]:
        kind = orders.ARGV
        if wanted.kind == "python":
            kind = orders.SCRIPT if self._place.kind == "once" else orders.RUN
        process, most = self._process, int(self._limits["output_bytes"])
        has_outputs = process.outputs is not None
        if process.outputs is None:
            process.outputs = Pipe(most), Pipe(most)
        out, err = process.outputs
        out.begin(most)
        err.begin(most)
        token = os.urandom(orders.TOKEN_BYTES)
        process.awaits(orders.DONE + token)
        stdin = wanted.stdin
        order = Order(kind, wanted.program, number, most, wanted.show_last, bool(stdin), has_outputs, token)
        mine: list[int] = []
        try:
            in_file = len(wanted.program) > orders.INLINE_BYTES
            if in_file:
                mine.append(orders.memory_file(wanted.program))
            if stdin:
                mine.append(orders.memory_file(stdin))
            given = () if has_outputs else (out.writing, err.writing)
            process.tell(orders.pack(order, in_file), *mine, *given)
        finally:
            for descriptor in mine:
                os.close(descriptor)
            if not has_outputs:
                out.given()
                err.given()
        return out, err

    def _waited(self, over: Callable[[], object], deadline: float) -> Generator[float, None, bool]:
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

    def _stop(self, kind: str, over: Callable[[], object]) -> Steps:
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
        if self._place.folder < 0 or self._host.mode == "fork_only":
            return False
        found = os.statvfs(self._place.folder)
        return found.f_bavail == 0 or found.f_favail == 0


def _reader(host: Host, pipe: Pipe) -> Callable[[], None]:
    def read() -> None:
        if pipe.read() == 0:
            host.unwatch(pipe.reading)

    return read
