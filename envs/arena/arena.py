"""Arena: many episodes at once, each seat's play in a slot of its own. `palaestra.arena` opens it.

A table is a machine and who sits at it. `begin` seats a player: those whose starts agree in task and seed sit at one
table, which opens when its last seat is taken; a table of one seat opens at once. A seat hears nothing while the others
are at it. A game ends as a whole: endings come together, once no seat is with its agent any more, so that a game that
broke can be begun again by every seat. When one seat cannot go on (its tokens ran out), its ending is its own; the
others end TURN_LIMIT with a fault that names it: scored on what exists, not blamed, and left out of training.

What only computes is done in `begin` and `send`; all else runs beside it, and is gone on from in the thread that calls
`recv`. Nothing waits without a deadline. Left out: Gymnasium's vector face (`vector`), and what a machine is.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.tables import Gathering, Places, Standing, Table
from palaestra.envs.core.machine import Reply
from palaestra.envs.running.inbox import STALL_SHARE, Inbox, Stall
from palaestra.envs.running.loop import Lag
from palaestra.envs.running.runner import Runner
from palaestra.envs.running.work import Pending, warn_late
from palaestra.episode import Ending, Event, Start
from palaestra.errors import UsageError

log = logging.getLogger("palaestra.envs")
MAX_WORKERS = 64
_TOGETHER = 128
"""Pendings that start together: large enough that waking who runs them costs little, small enough that the first calls
wait while the last are still read."""
_HEARD = 256
"""Pendings that are waited for at most, so that some are gone on from while others still run. Whoever is woken more
often stands in the way of the threads that bring the results."""
_BREATH = 50e-6
"""Seconds in which we leave the interpreter to those who were just woken: they would otherwise wait for it until we had
read on for 5 ms."""


class Arena(Places):
    """`slots` places where seats of episodes are played."""

    def __init__(
        self,
        make: Callable[[], Playable],
        slots: int,
        *,
        name: str,
        ordered: bool | None = None,
        max_workers: int | None = None,
        timeout: float = 60.0,
        hint: str = "",
    ) -> None:
        """`timeout` is how long a game may wait for its seats, `hint` what to say to whoever begins one that it lacks.
        `ordered=None` means True where nothing waits: then order costs nothing and curves repeat."""
        self._make, first = make, make()
        self._idle: list[Playable] = [first]
        Places.__init__(self, name, first.seats, slots, hint)
        self.task_count, self._problems = first.task_count, getattr(first, "spec", None)
        self._barrier = first.inline if ordered is None else ordered
        self._runner = Runner(min(slots, MAX_WORKERS) if max_workers is None else max_workers)
        self._inbox = Inbox(name)
        self.outstanding = 0
        """Pendings of tables that have not come back."""
        self._landed: list[Pending] = []
        self._aside: set[Pending] = set()
        self._ready: dict[int, Event] = {}
        self._errors: list[BaseException] = []
        self._gathering = Gathering(name, self._seats, timeout)

    @property
    def ordered(self) -> bool:
        """True when `recv` is a barrier that reports in slot order. Seats that wait for each other never are."""
        return self._barrier and self._alone

    @property
    def loop_lag(self) -> Lag:
        """How late the event loop was: near 0, unless a tool holds it or the machine is overloaded."""
        return self._runner.lag

    def stalls(self, share: float = STALL_SHARE) -> list[Stall]:
        """The calls that have taken more than this share of their deadline, or have waited so long to begin."""
        out = [*(pending for table in dict.fromkeys(filter(None, self._tables)) for pending in table.out), *self._aside]
        found = [self._inbox.stall(work) for pending in out for work in pending.works if not work.over]
        return [stall for stall in found if stall.seconds > share * stall.timeout]

    def begin(self, slot: int, start: Start) -> None:
        """Take a seat. On a live slot the running episode is discarded, and its game ends for the others."""
        seat = start.seat
        if not 0 <= slot < len(self._tables) or self._standing[slot] is Standing.CLOSED:
            self._require_slot(slot)
        if seat not in self._seats:
            raise self._no_such_seat(seat)
        if self._standing[slot] is not Standing.FREE:
            self.discard(slot)
        table = self._tables[slot]
        if not self._alone:
            table = self._gathering.seated(seat, slot, start)
        elif table is None:
            table = Table(seat, slot, start)
        else:  # A table of one seat stays where it is, with its machine.
            table.starts[seat] = start
        self._tables[slot], self._seat[slot], self._standing[slot] = table, seat, Standing.BUSY
        if len(table.slots) == len(self._seats):
            machine = table.machine = table.machine or self._free_machine(start)
            going: list[Pending] = []
            try:
                self._take(table, machine.open(table.starts, slots=table.slots), going)
            except BaseException:  # The caller's start was refused, or the author's task cannot be drawn.
                self._drop(table)
                raise
            if going:
                self._runner.start(going, self._inbox)

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn. What only computes runs before this returns."""
        tables, standing, seats, asked = self._tables, self._standing, self._seat, Standing.ASKED
        for slot, text in actions.items():
            if not 0 <= slot < len(tables) or standing[slot] is not asked:
                self._require_asked("send", (slot,))
            if not isinstance(text, str):
                raise UsageError(f"send: slot {slot} got {type(text).__name__}; expected str, the agent's whole turn")
        going: list[Pending] = []
        busy, alone, ready = Standing.BUSY, self._seats == (None,), self._ready
        try:
            for slot, text in actions.items():
                standing[slot] = busy
                table = tables[slot]
                assert table is not None
                if table.endings:  # It ended while the agent was thinking.
                    self._release(table)
                    continue
                machine = table.machine
                assert machine is not None
                try:
                    reply = machine.act(seats[slot], text)
                except BaseException as error:  # An author's fault or an interrupt: `_fail` has it raised.
                    self._fail(table, error)
                    continue
                if alone and type(reply) is dict and not machine.aside:  # What `_take` would do.
                    ready[slot] = reply[None]
                    continue
                self._take(table, reply, going)
                if len(going) == _TOGETHER:
                    self._runner.start(going, self._inbox)
                    going = []
                    time.sleep(_BREATH)
        finally:
            if going:
                self._runner.start(going, self._inbox)

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """At least `min_ready` events, unless the timeout passes or no more can come before somebody acts.

        When `ordered`, a barrier: every outstanding event in slot order, or none where the timeout passes first.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.outstanding and self._hear(0.0):  # Whatever has come in by itself.
            pass
        while True:
            if not (self._barrier and self.outstanding):
                self._go_on()
            missing = self.outstanding if self._barrier else min(self.outstanding, max(min_ready, 1) - len(self._ready))
            if missing <= 0 or self._errors:
                break
            if not self._hear(until, missing):
                if self._barrier:
                    return []
                break
        if self._errors:  # An author's mistake; what else has happened is kept.
            raise self._errors.pop(0)
        if not self._ready and not self.outstanding and self._gathering and Standing.ASKED not in self._standing:
            self._gathering.rest(Standing.FREE not in self._standing, timeout)
        ready, self._ready = self._ready, {}
        events = [ready[slot] for slot in sorted(ready)]
        standing, asked, free = self._standing, Standing.ASKED, Standing.FREE
        for event in events:
            if event.ending is None:
                standing[event.slot] = asked
                continue
            standing[event.slot] = free
            if not self._alone:
                self._tables[event.slot] = None
        return events

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """Close a seat's episode from outside, and so its game; the events come through `recv`."""
        self._require_asked("finish", (slot,))
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with send")
        table, seat = self._tables[slot], self._seat[slot]
        assert table is not None
        self._standing[slot] = Standing.BUSY
        if table.endings:
            self._release(table)
            return
        fault = f"{seat} was closed from outside" if seat is not None and ending is Ending.BROKEN else ""
        assert table.machine is not None
        self._step(table, partial(table.machine.stop, ending, seat, text, fault))

    def close(self) -> None:
        """Discard what runs and release everything, within the time that toolkits have to close."""
        for table in {table for table in self._tables if table is not None}:
            self._drop(table)
        for machine in self._idle:
            try:
                machine.close()
            except Exception as error:
                log.warning("%s did not close: %s: %s", self.name, type(error).__name__, error)
        seconds = max((work.patience for pending in self._aside for work in pending.works), default=0.0)
        until = time.monotonic() + seconds
        while self._aside and self._hear(until):
            pass
        for pending in self._aside:
            self._runner.give_up(pending)
        for held in (self._idle, self._ready, self._gathering, self._aside, self._landed):
            held.clear()
        self._runner.close()
        self._tables, self._standing = [None] * self.slots, [Standing.CLOSED] * self.slots

    # Inside: a table goes on.

    def _step(self, table: Table, step: Callable[[], Reply]) -> None:
        """Have something done to a table's episode."""
        going: list[Pending] = []
        try:
            self._take(table, step(), going)
        except BaseException as error:  # An author's fault or an interrupt: `_fail` has it raised.
            self._fail(table, error)
        if going:
            self._runner.start(going, self._inbox)

    def _take(self, table: Table, reply: Reply, going: list[Pending]) -> None:
        """Take down what has happened, or what has to be done first."""
        if isinstance(reply, Pending):
            reply.owner, reply.slot = table, next(iter(table.slots.values()), 0)
            table.out.append(reply)
            self.outstanding += 1
            going.append(reply)
            return
        machine = table.machine
        if machine is not None and machine.aside:
            self._put_aside(machine)
        for seat, event in reply.items():
            if event.ending is not None:
                if not self._alone:  # Others may still be at it.
                    table.endings = reply
                    self._release(table)
                    return
                self._ready[event.slot] = event
            elif seat in table.slots:
                self._ready[event.slot] = event

    def _go_on(self) -> None:
        """Go on from all that has come back, in slot order."""
        while self._landed:
            landed, self._landed = sorted(self._landed, key=lambda pending: pending.slot), []
            going: list[Pending] = []
            for pending in landed:
                table: Table = pending.owner
                if table.machine is None:
                    continue
                try:
                    self._take(table, table.machine.resume(pending), going)
                except BaseException as error:  # An author's fault or an interrupt: `_fail` has it raised.
                    self._fail(table, error)
            if going:
                self._runner.start(going, self._inbox)

    def _hear(self, until: float | None, count: int = 1) -> bool:
        """Wait for news, `count` of them if possible, and take them in; False where `until` came first."""
        news = self._inbox.wait(until, min(count, _HEARD))
        for pending in news:
            if pending in self._aside:
                self._aside.discard(pending)
                warn_late(self.name, pending.works)
            elif pending in pending.owner.out:
                pending.owner.out.remove(pending)
                self.outstanding -= 1
                self._landed.append(pending)
        return bool(news)

    def _release(self, table: Table) -> None:
        """Report an episode's end, unless an agent is still thinking about its turn."""
        for slot in table.slots.values():
            if self._standing[slot] is Standing.ASKED:
                return
        for seat, slot in table.slots.items():
            self._ready[slot] = table.endings[seat]
        self._retire(table)

    def _fail(self, table: Table, error: BaseException) -> None:
        """An author's mistake frees the table's slots, and is raised where news are received; others go on."""
        self._drop(table)
        if not isinstance(error, Exception):
            raise error
        self._errors.append(error)

    # Inside: a table is left.

    def discard(self, slot: int) -> None:
        """Drop whatever the slot holds; nothing is reported of it."""
        table, seat = self._tables[slot], self._seat[slot]
        self._tables[slot], self._standing[slot] = None, Standing.FREE
        self._ready.pop(slot, None)
        if table is None or table.slots.get(seat) != slot:
            return
        if len(table.slots) == 1:
            table.slots[seat] = slot
            self._drop(table)
            return
        del table.slots[seat], table.starts[seat]
        if table.endings:
            self._release(table)
        elif table.machine is not None:
            fault = f"{seat} was taken away from the game"
            self._step(table, partial(table.machine.stop, Ending.TURN_LIMIT, seat, "", fault))

    def _drop(self, table: Table) -> None:
        """Discard a table's episode; its slots are free."""
        for slot in table.slots.values():
            if self._tables[slot] in (table, None):
                self._tables[slot], self._standing[slot] = None, Standing.FREE
                self._ready.pop(slot, None)
        self._gathering.leave(table)
        if table.machine is None:
            return
        in_use = bool(table.out)
        for pending in table.out:
            self._runner.give_up(pending)
        self.outstanding -= len(table.out)
        table.out.clear()
        table.machine.discard()
        self._put_aside(table.machine)
        self._retire(table, in_use)

    def _free_machine(self, start: Start) -> Playable:
        return self._idle.pop() if self._idle else self._make()

    def _retire(self, table: Table, in_use: bool = False) -> None:
        """The table's machine is free for another, unless something may still be at it."""
        self._idle += [] if in_use or table.machine is None else [table.machine]
        table.machine = None

    def _put_aside(self, machine: Playable) -> None:
        while machine.aside:
            pending = machine.aside.pop()
            self._aside.add(pending)
            self._runner.start((pending,), self._inbox)
