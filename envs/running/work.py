"""Jobs that take time (a tool call, the start or close of a toolkit, a reward), and the conditions on which they run.

A Work is one job: its maker says what to run, and a runner runs it and stores the outcome in it. Jobs that are needed
together form a Pending, which is complete when each job is over or late. Left out: the purpose of a job, which only its
maker knows, and running it (`runner`).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from palaestra.envs.running.concurrency_limits import Limit
from palaestra.errors import Broken, EnvironmentDefect, ToolError

log = logging.getLogger("palaestra.envs")
KILL_SECONDS = 5.0
"""Seconds after its deadline within which a process must be killed."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_MAX_SHOWN = 200
_spread = random.Random()
"""Separate random generator, so that no episode's randomness depends on a server's failures."""


class WorkMode(StrEnum):
    """Place where a job runs."""

    INLINE = "inline"
    """The caller's thread, for work that only computes. Its timeout cannot be enforced."""
    ASYNC = "async"
    """The event loop, concurrently with other jobs, for an `async def`."""
    BLOCKING = "blocking"
    """A thread, for a plain function that waits."""
    PROCESS = "process"
    """A process that can be killed, for a plain function of its arguments that computes for long."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Place, timeout, retries and limit of a job. One object serves many jobs."""

    mode: WorkMode
    seconds: float
    """Timeout in seconds, from when the job begins."""
    retries: int = 0
    transient: tuple[type[Exception], ...] = ()
    """Exceptions after which it is tried again; one that is left after the last try is an infrastructure failure."""
    limit: Limit | None = None
    """Limit shared by all jobs of this tool in this Python process; None for no limit."""


class InProcess(NamedTuple):
    """A function that a job of the mode PROCESS runs: another process imports it by name, and gets plain data."""

    function: str
    """Name of the function, as "module:name"."""
    data: Mapping[str, Any]


class Work:
    """A job. Its maker sets the first group of attributes, a runner sets the outcome, and the last group is its
    progress."""

    __slots__ = (
        "admitted", "arguments", "child", "conditions", "error", "label", "late", "over", "pending",
        "requested_at", "run", "seconds", "started_at", "task", "value",
    )  # fmt: skip

    def __init__(
        self, label: str, run: Callable[[], Any] | InProcess, conditions: Conditions, arguments: Mapping[str, Any] = {}
    ) -> None:
        self.label = label
        """Name of the job in messages about stalls and timeouts."""
        self.run = run
        """Plain function, or one that returns an awaitable where the mode is ASYNC."""
        self.conditions = conditions
        self.arguments = arguments
        """Arguments shown beside the label."""

        self.value: Any = None
        self.error: BaseException | None = None
        self.seconds = 0.0
        self.late = False
        """True if it passed its deadline: there is no outcome, and what it uses may still be in use."""

        self.pending: Pending
        self.over = False
        """True if it has its outcome, is late, or is no longer needed."""
        self.requested_at = 0.0
        self.started_at: float | None = None
        self.admitted = False
        """True while it counts against its limit."""
        self.task: Any = None
        self.child: Any = None
        """Process that works on it."""

    @property
    def patience(self) -> float:
        """Seconds after which the job is late. A process gets KILL_SECONDS more: its thread kills it at the timeout."""
        conditions = self.conditions
        return conditions.seconds + KILL_SECONDS if conditions.mode is WorkMode.PROCESS else conditions.seconds

    def rings(self, share: float) -> float:
        """Return the time on the monotonic clock when `share` of the timeout has passed; infinite before the job
        begins."""
        return float("inf") if self.started_at is None else self.started_at + share * self.patience

    def __str__(self) -> str:
        return f"{self.label}({format_arguments(self.arguments)})"

    def outcome(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value

    def perform(self) -> None:
        """Run the job in this thread, with the retries of its conditions."""
        assert not isinstance(self.run, InProcess)
        started, attempt = time.perf_counter(), 0
        while True:
            try:
                self.value, self.error = self.run(), None
            except BaseException as error:  # After any error: the caller must not wait for a thread that is gone.
                pause = self._pause(error, attempt)
                if pause is not None:
                    attempt += 1
                    time.sleep(pause)
                    continue
            self.seconds = time.perf_counter() - started
            return

    async def perform_async(self) -> None:
        """Run the job, an `async def`, on the event loop, with the retries of its conditions."""
        assert not isinstance(self.run, InProcess)
        started, attempt = time.perf_counter(), 0
        while True:
            try:
                self.value, self.error = await self.run(), None
            except (Exception, SystemExit) as error:
                pause = self._pause(error, attempt)
                if pause is not None:
                    attempt += 1
                    await asyncio.sleep(pause)
                    continue
            self.seconds = time.perf_counter() - started
            return

    def _pause(self, error: BaseException, attempt: int) -> float | None:
        """Return the seconds before another try; None if there is no other try, so that the error is the outcome."""
        self.error = error
        conditions = self.conditions
        if not isinstance(error, conditions.transient) or isinstance(error, ToolError | EnvironmentDefect):
            return None
        if attempt < conditions.retries:
            # Random, so that jobs that failed together do not return together.
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
    """Jobs that are needed together, in an order that has a meaning for their maker."""

    __slots__ = ("about", "inbox", "left", "owner", "runner", "slot", "works")

    def __init__(self, works: Sequence[Work], about: Any = None) -> None:
        self.works = works
        self.about = about
        """Data of the maker; the runner never reads it."""
        self.owner: Any = None
        """Object that the Pending belongs to, set by the caller that waits for it."""
        self.slot = 0
        """Slot named in messages about stalls."""
        self.left = len(works)
        self.inbox: Any = None
        self.runner: Any = None
        for work in works:
            work.pending = self

    @property
    def late(self) -> Work | None:
        """First job that passed its deadline; None if there is none."""
        return next((work for work in self.works if work.late), None)


def warn_late(where: str, works: Sequence[Work]) -> None:
    """Log the jobs that did not end in time."""
    for work in works:
        if work.late:
            log.warning("%s: %s did not end within %g s", where, work.label, work.conditions.seconds)


def format_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments as a short text."""
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
