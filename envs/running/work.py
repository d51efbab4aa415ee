"""Work: something that takes time (a call, a start, a verdict, a closing), and the conditions on which it runs.

Whoever makes a Work says what to run; a runner runs it and writes the outcome into it. Works that are needed together
are a Pending, which is complete when each of its works is over or late. Left out: what a work is for, which its maker
alone knows, and where it runs (`runner`).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from palaestra.envs.running.limits import Limit
from palaestra.errors import Broken, EnvironmentDefect, ToolError

log = logging.getLogger("palaestra.envs")
KILL_SECONDS = 5.0
"""How long after its deadline a process may take to be killed."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_MAX_SHOWN = 200
_spread = random.Random()
"""Of its own, so that no episode's randomness depends on a server's failures."""


class Mode(StrEnum):
    """Where something runs."""

    INLINE = "inline"
    """In place, in the caller's thread: for what only computes. Its deadline cannot be enforced."""
    ASYNC = "async"
    """An `async def`: on the event loop, beside all other works."""
    BLOCKING = "blocking"
    """A plain function that waits: in a thread."""
    PROCESS = "process"
    """A plain function of its arguments that computes for long: in a process that can be killed."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Where a work runs, for how long, how often again, and how many at once. One object serves many works."""

    mode: Mode
    seconds: float
    """The deadline, from when the work begins."""
    retries: int = 0
    transient: tuple[type[Exception], ...] = ()
    """Exceptions after which it is tried again; those that are left after the last try are the infrastructure's."""
    limit: Limit | None = None
    """Shared by all works of this Python process that go through it."""


class InProcess(NamedTuple):
    """What a work of the mode PROCESS runs: another process imports it by name, and hands it plain data."""

    function: str
    """As "module:name"."""
    data: Mapping[str, Any]


class Work:
    """One thing to do. Its first part is its maker's, the outcome the runner's; the last guarded by an inbox."""

    __slots__ = (
        "admitted", "arguments", "asked", "begun", "child", "conditions", "error", "label", "late", "over", "pending",
        "run", "seconds", "task", "value",
    )  # fmt: skip

    def __init__(
        self, label: str, run: Callable[[], Any] | InProcess, conditions: Conditions, arguments: Mapping[str, Any] = {}
    ) -> None:
        self.label = label
        """What it is called where it stalls or is late."""
        self.run = run
        """Plain, or giving an awaitable where the mode is ASYNC."""
        self.conditions = conditions
        self.arguments = arguments
        """Shown beside the label."""

        self.value: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.late = False
        """It passed its deadline: there is no outcome, and whatever it uses may still be in use."""

        self.pending: Pending
        self.over = False
        """It has its outcome, is late, or nobody wants it any more."""
        self.asked = 0.0
        self.begun: float | None = None
        self.admitted = False
        """It counts against its limit."""
        self.task: Any = None
        self.child: Any = None
        """The process that works on it."""

    @property
    def patience(self) -> float:
        """Seconds after which it is late. A process is killed in time by its thread; this is the second look."""
        conditions = self.conditions
        return conditions.seconds + KILL_SECONDS if conditions.mode is Mode.PROCESS else conditions.seconds

    def rings(self, share: float) -> float:
        """When so much of its time has passed."""
        return float("inf") if self.begun is None else self.begun + share * self.patience

    def __str__(self) -> str:
        return f"{self.label}({shown(self.arguments)})"

    def outcome(self) -> Any:
        """The value, or the error, raised."""
        if self.error is not None:
            raise self.error
        return self.value

    def perform(self) -> None:
        """Run it in this thread, as often as its conditions say."""
        assert not isinstance(self.run, InProcess)
        begun, attempt = time.perf_counter(), 0
        while True:
            try:
                self.value, self.error = self.run(), None
            except BaseException as error:  # Whatever it is, whoever waits must not wait for a thread that is gone.
                pause = self._pause(error, attempt)
                if pause is not None:
                    attempt += 1
                    time.sleep(pause)
                    continue
            self.seconds = time.perf_counter() - begun
            return

    async def perform_async(self) -> None:
        """The same for an `async def`."""
        assert not isinstance(self.run, InProcess)
        begun, attempt = time.perf_counter(), 0
        while True:
            try:
                self.value, self.error = await self.run(), None
            except (Exception, SystemExit) as error:
                pause = self._pause(error, attempt)
                if pause is not None:
                    attempt += 1
                    await asyncio.sleep(pause)
                    continue
            self.seconds = time.perf_counter() - begun
            return

    def _pause(self, error: BaseException, attempt: int) -> float | None:
        """Seconds to wait before another try; None where there is none, and the error is the outcome."""
        self.error = error
        conditions = self.conditions
        if not isinstance(error, conditions.transient) or isinstance(error, ToolError | EnvironmentDefect):
            return None
        if attempt < conditions.retries:
            # Spread out: works that failed together must not come back together.
            pause: float = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * _spread.uniform(0.5, 1.5)
            if conditions.limit is not None:
                pause = max(pause, conditions.limit.delay())
            if time.monotonic() + pause < self.rings(1.0):
                return pause
        if not isinstance(error, Broken):
            tries = "1 try" if attempt == 0 else f"{attempt + 1} tries"
            self.error = Broken(f"{type(error).__name__}: {error} (declared transient, and still so after {tries})")
            self.error.__cause__ = error
        return None


class Pending:
    """Works that are needed together, in an order that means something to their maker."""

    __slots__ = ("about", "inbox", "left", "owner", "runner", "slot", "works")

    def __init__(self, works: Sequence[Work], about: Any = None) -> None:
        self.works = works
        self.about = about
        """Its maker's own; whoever runs it never looks."""
        self.owner: Any = None
        """Whoever waits for it writes here what it belongs to."""
        self.slot = 0
        """Named where a work stalls."""
        self.left = len(works)
        self.inbox: Any = None
        self.runner: Any = None
        for work in works:
            work.pending = self

    @property
    def late(self) -> Work | None:
        """The first work that passed its deadline."""
        return next((work for work in self.works if work.late), None)


def warn_late(where: str, works: Sequence[Work]) -> None:
    """Say which of these did not end in time."""
    for work in works:
        if work.late:
            log.warning("%s: %s did not end within %g s", where, work.label, work.conditions.seconds)


def shown(arguments: Mapping[str, Any]) -> str:
    """Arguments in a few words."""
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
