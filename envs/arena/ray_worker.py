"""Actor of `ray.RayArena`: an ordinary arena, run by one thread.

Slots have the same numbers as in the trainer's arena. Batches of commands (orders) are numbered, because Ray does not
guarantee their order. Each event is returned with the ticket of its episode, so that the trainer can ignore events of a
discarded episode. This module does not use Ray. Left out: choosing a worker, and replacing a dead one (`ray`).
"""

import pickle
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple

from palaestra.envs.arena.arena import LocalArena
from palaestra.episode import Event
from palaestra.errors import Broken, EnvironmentDefect, PalaestraError, UsageError
from palaestra.registry import arena

_ALTERNATION = 0.002
"""Seconds to wait for events before checking for new orders, while tools run."""


class WorkerCommand(NamedTuple):
    """Command to a worker: a call of a method of its arena."""

    method: Literal["begin", "send", "finish", "discard"]
    arguments: tuple[Any, ...]
    ticket: int = 0
    """Ticket that the events of a begun episode carry."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Properties of the environment that a worker has opened, and its host."""

    task_count: int
    task_counts: Mapping[str, int]
    """Number of tasks by environment, for a mixture; else empty."""
    ordered: bool
    seats: tuple[str | None, ...]
    name: str
    hint: str
    host: str


@dataclass(frozen=True, slots=True)
class News:
    """Events and errors since the last report."""

    events: bytes
    """Pickled pairs of a ticket and its event."""
    errors: list[PalaestraError]
    done: int
    """Number of batches of orders that are done."""
    idle: bool
    """True if nothing more comes before another order."""


class Worker:
    """The actor. Call `open` first; then `do` and `recv` may run at the same time, each in its own thread."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[list[WorkerCommand] | None] = SimpleQueue()
        self._early: dict[int, list[WorkerCommand]] = {}
        self._taken = 0
        self._news = threading.Condition()
        self._events: list[tuple[int, Event]] = []
        self._errors: list[PalaestraError] = []
        self._done, self._reported, self._idle = 0, 0, True
        self._tickets: dict[int, int] = {}
        self._thread: threading.Thread | None = None

    def open(
        self, env_id: str, slots: int, options: Mapping[str, Any], path: Sequence[str]
    ) -> WorkerInfo | PalaestraError:
        """Open the arena; an error is returned, because not every class of errors can be pickled.

        `path` has the folders that the trainer imports from: they are added to the search path of this process.
        """
        sys.path += [folder for folder in path if folder not in sys.path]
        try:
            opened = arena(env_id, slots, **options)
            assert isinstance(opened, LocalArena)
        except Exception as error:
            return _portable(error)
        self._thread = threading.Thread(target=self._run, args=(opened,), daemon=True)
        self._thread.start()
        return WorkerInfo(
            opened.task_count,
            getattr(opened, "task_counts", {}),
            opened.ordered,
            opened.seats or (None,),
            opened.name,
            opened.hint,
            socket.gethostname(),
        )

    def do(self, number: int, orders: list[WorkerCommand]) -> None:
        """Take a batch of commands. The first batch has the number 1; batches are run in the order of their numbers."""
        self._early[number] = orders
        while (following := self._early.pop(self._taken + 1, None)) is not None:
            self._taken += 1
            self._orders.put(following)

    def recv(self, seconds: float) -> News:
        """Wait at most `seconds` for events or errors, and return all that there are."""
        with self._news:
            self._news.wait_for(
                lambda: self._events or self._errors or (self._idle and self._done > self._reported), seconds
            )
            events, self._events = self._events, []
            errors, self._errors = self._errors, []
            self._reported = self._done
            return News(_packed(events, errors), errors, self._done, self._idle)

    def close(self) -> None:
        """Release everything, after all commands have run."""
        self._orders.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self, arena: LocalArena) -> None:
        """Run commands and report events, in turn, until `close` ends the thread."""
        again = False
        while True:
            orders: list[WorkerCommand] | None = []
            with suppress(Empty):
                orders = self._orders.get(block=not (arena.outstanding or again))
            if orders is None:
                arena.close()
                return
            events, errors, again = [], [], False
            for order in orders:
                try:
                    self._obey(arena, order)
                except BaseException as error:  # An author's code runs here, and this thread must survive its errors.
                    errors.append(_portable(error))
            try:
                events = arena.recv(arena.outstanding, 0.0 if orders else _ALTERNATION)
            except BaseException as error:
                errors.append(_portable(error))
                again = True  # Other events may be ready.
            with self._news:
                self._events += [(self._tickets[event.slot], event) for event in events]
                self._errors += errors
                self._done += bool(orders)
                self._idle = not (arena.outstanding or again)
                self._news.notify()

    def _obey(self, arena: LocalArena, order: WorkerCommand) -> None:
        if order.method == "begin":
            self._tickets[order.arguments[0]] = order.ticket
        getattr(arena, order.method)(*order.arguments)


def _packed(events: list[tuple[int, Event]], errors: list[PalaestraError]) -> bytes:
    """Return events as bytes. Events that cannot be pickled are an error of the environment's author."""
    try:
        return pickle.dumps(events, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        error_text = f"what its tasks or endings hold cannot be sent to the trainer: {type(error).__name__}: {error}"
        errors.append(EnvironmentDefect(f"{error_text}; use plain data, or classes at the top of a module"))
        return pickle.dumps([])


def _portable(error: BaseException) -> PalaestraError:
    """Return the error as one that can be pickled, of the nearest class of palaestra's own."""
    for kind in (UsageError, EnvironmentDefect, Broken, PalaestraError):
        if isinstance(error, kind):
            return kind(str(error))
    return EnvironmentDefect(f"{type(error).__name__}: {error}")
