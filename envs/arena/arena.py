"""Arena: many episodes at once, each seat in its own slot. `palaestra.arena` opens it.

A table is a running game: a machine and the slots of its seats. `begin` takes a seat: starts that agree in task and
seed share one table, which opens when its last seat is taken; a table of one seat opens at once. A seat gets no
event while other seats are to move. A game ends as a whole: endings come together, once no seat waits for its agent any
more, so that every seat can begin a broken game again. If one seat cannot continue (its tokens ran out), only that seat
gets the ending; the others end TURN_LIMIT with a fault that names it: they are scored on what exists, not blamed, and
left out of training.

Work that only computes is done in `begin` and `send`; all else runs beside it, and is continued in the thread that
calls `recv`. Every wait has a timeout. Left out: Gymnasium's vector environment (`vector`), and machines themselves.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.tables import ArenaSlots, RunningGame, SlotState, WaitingGames
from palaestra.envs.core.machine import MachineReply
from palaestra.envs.running.inbox import STALL_SHARE, Inbox, Stall
from palaestra.envs.running.runner import Runner
from palaestra.envs.running.work import Pending, warn_late
from palaestra.episode import Ending, Event, Start
from palaestra.errors import UsageError

log = logging.getLogger("palaestra.envs")
MAX_WORKERS = 64
_TOGETHER = 128
"""Number of Pendings that start together: large enough that the wake-up of a runner costs little, small enough that
the first calls do not wait while the last ones are still read."""
_HEARD = 256
"""Most Pendings that one wait collects, so that some are continued while others still run. A thread that is woken more
often delays the threads that bring the results."""
_BREATH = 50e-6
"""Seconds to sleep so that the threads that were just woken can run (they would wait up to 5 ms for the GIL)."""


class LocalArena(ArenaSlots):
    """Arena with `slots` slots, in which seats of episodes are played."""

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
        """`timeout` is how many seconds a game may wait for its seats, `hint` the advice in the error for an unknown
        seat. `ordered=None` means True if nothing waits: order then costs nothing, and runs repeat exactly."""
        self._make, first = make, make()
        self._idle: list[Playable] = [first]
        ArenaSlots.__init__(self, name, first.seats, slots, hint)
        self.task_count, self._problems = first.task_count, getattr(first, "spec", None)
        self._barrier = first.inline if ordered is None else ordered
        self._runner = Runner(min(slots, MAX_WORKERS) if max_workers is None else max_workers)
        self._inbox = Inbox(name)
        self.outstanding = 0
        """Number of Pendings of tables that have not come back."""
        self._landed: list[Pending] = []
        self._aside: set[Pending] = set()
        self._ready: dict[int, Event] = {}
        self._errors: list[BaseException] = []
        self._gathering = WaitingGames(name, self._seats, timeout)

    @property
    def ordered(self) -> bool:
        """True if `recv` is a barrier that reports in slot order. It never is for games of several seats."""
        return self._barrier and self._alone

    def stalls(self, share: float = STALL_SHARE) -> list[Stall]:
        """Return the calls that have used more than this share of their timeout, or have waited so long to begin."""
        out = [*(pending for table in dict.fromkeys(filter(None, self._tables)) for pending in table.out), *self._aside]
        stalls = [self._inbox.stall(work) for pending in out for work in pending.works if not work.over]
        return [stall for stall in stalls if stall.seconds > share * stall.timeout]

    def begin(self, slot: int, start: Start) -> None:
        """Take a seat. If the slot is in use, its episode is discarded, and its game ends for the others."""
        seat = start.seat
        if not 0 <= slot < len(self._tables) or self._standing[slot] is SlotState.CLOSED:
            self._require_slot(slot)
        if seat not in self._seats:
            raise self._no_such_seat(seat)
        if self._standing[slot] is not SlotState.FREE:
            self.discard(slot)
        table = self._tables[slot]
        if not self._alone:
            table = self._gathering.seated(seat, slot, start)
        elif table is None:
            table = RunningGame(seat, slot, start)
        else:  # A table of one seat is reused, with its machine.
            table.starts[seat] = start
        self._tables[slot], self._seat[slot], self._standing[slot] = table, seat, SlotState.BUSY
        if len(table.slots) == len(self._seats):
            machine = table.machine = table.machine or self._free_machine(start)
            going: list[Pending] = []
            try:
                self._take(table, machine.open(table.starts, slots=table.slots), going)
            except BaseException:  # The start was refused, or the author's task failed.
                self._drop(table)
                raise
            if going:
                self._runner.start(going, self._inbox)

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn. Work that only computes runs before this returns."""
        tables, standing, seats, asked_standing = self._tables, self._standing, self._seat, SlotState.ASKED
        for slot, text in actions.items():
            if not 0 <= slot < len(tables) or standing[slot] is not asked_standing:
                self._require_asked("send", (slot,))
            if not isinstance(text, str):
                raise UsageError(f"send: slot {slot} got {type(text).__name__}; expected str, the agent's whole turn")
        going: list[Pending] = []
        busy, alone, ready = SlotState.BUSY, self._seats == (None,), self._ready
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
        """Return at least `min_ready` events, or fewer if the timeout passes or the caller must act first.

        If `ordered`, it is a barrier: every outstanding event in slot order, or none where the timeout passes first.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self.outstanding and self._hear(0.0):  # Take all that has come in.
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
        if self._errors:  # An author's error; all other events are kept.
            raise self._errors.pop(0)
        if not self._ready and not self.outstanding and self._gathering and SlotState.ASKED not in self._standing:
            self._gathering.rest(SlotState.FREE not in self._standing, timeout)
        ready, self._ready = self._ready, {}
        events = [ready[slot] for slot in sorted(ready)]
        standing, asked_standing, free = self._standing, SlotState.ASKED, SlotState.FREE
        for event in events:
            if event.ending is None:
                standing[event.slot] = asked_standing
                continue
            standing[event.slot] = free
            if not self._alone:
                self._tables[event.slot] = None
        return events

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """Close a seat's episode from outside, and with it its game; the events come through `recv`."""
        self._require_asked("finish", (slot,))
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with send")
        table, seat = self._tables[slot], self._seat[slot]
        assert table is not None
        self._standing[slot] = SlotState.BUSY
        if table.endings:
            self._release(table)
            return
        fault = f"{seat} was closed from outside" if seat is not None and ending is Ending.BROKEN else ""
        assert table.machine is not None
        self._step(table, partial(table.machine.stop, ending, seat, text, fault))

    def close(self) -> None:
        """Discard running episodes and release everything, within the time that toolkits have to close."""
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
        for collection in (self._idle, self._ready, self._gathering, self._aside, self._landed):
            collection.clear()
        self._runner.close()
        self._tables, self._standing = [None] * self.slots, [SlotState.CLOSED] * self.slots

    # Inside: a table continues.

    def _step(self, table: RunningGame, step: Callable[[], MachineReply]) -> None:
        """Run a step of a table's episode, and take its reply."""
        going: list[Pending] = []
        try:
            self._take(table, step(), going)
        except BaseException as error:  # An author's fault or an interrupt: `_fail` has it raised.
            self._fail(table, error)
        if going:
            self._runner.start(going, self._inbox)

    def _take(self, table: RunningGame, reply: MachineReply, going: list[Pending]) -> None:
        """Store the events of a reply, or the Pending that must be done first."""
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
                if not self._alone:  # Other seats may still wait for their agents.
                    table.endings = reply
                    self._release(table)
                    return
                self._ready[event.slot] = event
            elif seat in table.slots:
                self._ready[event.slot] = event

    def _go_on(self) -> None:
        """Continue all episodes whose Pendings have come back, in slot order."""
        while self._landed:
            landed, self._landed = sorted(self._landed, key=lambda pending: pending.slot), []
            going: list[Pending] = []
            for pending in landed:
                table: RunningGame = pending.owner
                if table.machine is None:
                    continue
                try:
                    self._take(table, table.machine.resume(pending), going)
                except BaseException as error:  # An author's fault or an interrupt: `_fail` has it raised.
                    self._fail(table, error)
            if going:
                self._runner.start(going, self._inbox)

    def _hear(self, until: float | None, count: int = 1) -> bool:
        """Wait for Pendings, if possible `count` of them, and store them; return False if `until` came first."""
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

    def _release(self, table: RunningGame) -> None:
        """Report the end of an episode, unless one of its seats still waits for its agent."""
        for slot in table.slots.values():
            if self._standing[slot] is SlotState.ASKED:
                return
        for seat, slot in table.slots.items():
            self._ready[slot] = table.endings[seat]
        self._retire(table)

    def _fail(self, table: RunningGame, error: BaseException) -> None:
        """Free the slots of a table after an author's error, which `recv` raises; other tables continue."""
        self._drop(table)
        if not isinstance(error, Exception):
            raise error
        self._errors.append(error)

    # Inside: a table ends.

    def discard(self, slot: int) -> None:
        """Drop the episode in the slot; nothing is reported of it."""
        table, seat = self._tables[slot], self._seat[slot]
        self._tables[slot], self._standing[slot] = None, SlotState.FREE
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

    def _drop(self, table: RunningGame) -> None:
        """Discard a table's episode, and free its slots."""
        for slot in table.slots.values():
            if self._tables[slot] in (table, None):
                self._tables[slot], self._standing[slot] = None, SlotState.FREE
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

    def _retire(self, table: RunningGame, in_use: bool = False) -> None:
        """Free the table's machine for another table, unless jobs may still use it."""
        self._idle += [] if in_use or table.machine is None else [table.machine]
        table.machine = None

    def _put_aside(self, machine: Playable) -> None:
        while machine.aside:
            pending = machine.aside.pop()
            self._aside.add(pending)
            self._runner.start((pending,), self._inbox)
