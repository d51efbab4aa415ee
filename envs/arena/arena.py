"""Arena: many episodes at once, each seat in its own slot. `palaestra.arena` opens it.

A table is a running game: a machine and the slots of its seats. `begin` takes a seat: starts that agree in task and
seed share one table, whose game begins when all seats are taken. A seat gets no event while other seats must act. A
game ends as a whole: all endings are reported together, when no seat waits for its agent, so that every seat can begin
a broken game again. If one seat cannot continue (its tokens ran out), only that seat gets the ending; the others end
TURN_LIMIT with a fault that names it: they get a reward, but are left out of training.

`begin` and `send` do work that only computes. Other jobs run beside it; the thread that calls `recv` continues their
episodes. Every wait has a timeout. Left out: Gymnasium's vector environment (`vector`), and machines (`core.machine`).
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

from palaestra.envs.arena.branch_start import open_start, snapshot_of
from palaestra.envs.arena.jobs import ArenaJobs
from palaestra.envs.arena.playable import Asking, Playable
from palaestra.envs.arena.tables import ArenaSlots, RunningGame, SlotState, close_machines
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.machine import MachineReply
from palaestra.envs.core.state import Seat
from palaestra.envs.running.inbox import STALL_SHARE, Stall
from palaestra.envs.running.work import Pending
from palaestra.episode import Ending, Event, Start

MAX_WORKERS = 64
_TOGETHER = 128
"""Number of Pendings that start together: large enough that the wake-up of a runner costs little, small enough that
the first calls do not wait while the last ones are still read."""
_YIELD_SECONDS = 50e-6
"""Seconds to sleep so that the threads that were just woken can run (they would wait up to 5 ms for the GIL)."""


class LocalArena(ArenaSlots):
    """Arena in this process with `slots` slots, each of which plays one seat of an episode at a time."""

    def __init__(
        self,
        makes: Mapping[str, Callable[[], Playable]],
        slots: int,
        *,
        name: str,
        ordered: bool | None = None,
        max_workers: int | None = None,
        timeout: float = 60.0,
        hint: str = "",
    ) -> None:
        """`makes` has, for each environment, a function that creates a machine; the name of a single one is "".
        `timeout`: seconds that a game may wait for its seats. `hint`: advice in the error for an unknown seat.
        `ordered=None`: True if no tool or reward waits; a fixed order then costs no time, and runs repeat exactly."""
        self._makes = makes
        self._idle: dict[str, list[Playable]] = {}
        """Machines that play no episode, by environment."""
        try:
            for env, make in makes.items():
                self._idle[env] = [make()]
            machines = [machine for (machine,) in self._idle.values()]
            ArenaSlots.__init__(self, name, machines[0].seats, slots, hint, timeout)
        except BaseException:  # If one environment fails, the others must release what they hold.
            close_machines(self._idle, name)
            raise
        self.task_count = sum(machine.task_count for machine in machines)
        self._problems = getattr(machines[0], "spec", None)
        self.parallel = any(isinstance(machine, Asking) for machine in machines)
        self._barrier = all(machine.inline for machine in machines) if ordered is None else ordered
        self._jobs = ArenaJobs(name, min(slots, MAX_WORKERS) if max_workers is None else max_workers)
        self._seat: list[Seat] = [None] * slots

    @property
    def ordered(self) -> bool:
        """True if `recv` returns all outstanding events at once, in slot order; never for games of several seats."""
        return self._barrier and self._alone

    @property
    def outstanding(self) -> int:
        """Number of jobs that games wait for."""
        return self._jobs.outstanding

    def stalls(self, share: float = STALL_SHARE) -> list[Stall]:
        """Return the calls that have used more than this share of their timeout, or have waited so long to begin."""
        return self._jobs.stalls(self._tables, share)

    def begin(self, slot: int, start: Start) -> None:
        """Take a seat in a slot. A slot's former episode is discarded, and its game ends for the other seats."""
        seat = start.seat
        if not 0 <= slot < len(self._standing) or self._standing[slot] is not SlotState.FREE:
            self._require_slot(slot)
            self._require_seat(seat)
            self.discard(slot)
        elif seat not in self._seats:
            self._require_seat(seat)
        table, env = self._tables[slot], start.env if start.env in self._makes else ""
        if table is None or not self._alone or table.env != env:
            self._retire(table)
            table = self._table(slot, start)
            table.env = env
        table.starts[seat] = start  # A table of one seat is reused, with its machine.
        self._tables[slot], self._seat[slot], self._standing[slot] = table, seat, SlotState.BUSY
        if len(table.slots) == len(self._seats):
            idle = self._idle[env]
            machine = table.machine = table.machine or (idle.pop() if idle else self._makes[env]())
            going: list[Pending] = []
            try:
                self._take(table, open_start(machine, table.starts, table.slots), going)
            except BaseException:  # The start was refused, or the author's task failed.
                self._drop(table)
                raise
            self._jobs.start(going)

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn. Work that only computes runs before this returns."""
        self._require_turns(actions)
        tables, standing, seats = self._tables, self._standing, self._seat
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
                    if reply:
                        ready[slot] = reply[None]
                    else:  # Another of its turns is not answered yet.
                        standing[slot] = SlotState.ASKED
                    continue
                self._take(table, reply, going)
                if len(going) == _TOGETHER:
                    self._jobs.start(going)
                    going = []
                    time.sleep(_YIELD_SECONDS)
        finally:
            if going:
                self._jobs.start(going)

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """Return at least `min_ready` events, or fewer if the timeout passes or the caller must act first.

        If `ordered`, return all outstanding events in slot order, or none if `timeout` (in seconds, None: no limit)
        passes.
        """
        until = None if timeout is None else time.monotonic() + timeout
        jobs = self._jobs
        while jobs.outstanding and jobs.receive(0.0):  # Take all that has come in.
            pass
        while True:
            if not (self._barrier and jobs.outstanding):
                self._go_on()
            missing = jobs.outstanding if self._barrier else min(jobs.outstanding, max(min_ready, 1) - len(self._ready))
            if missing <= 0 or self._errors:
                break
            if not jobs.receive(until, missing):
                if self._barrier:
                    return []
                break
        events = self._report(jobs.outstanding, timeout)
        if not self._alone:
            for event in events:
                if event.ending is not None:
                    self._tables[event.slot] = None
        return events

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """End a seat's episode from outside, and with it the whole game; `recv` returns the events."""
        self._require_finish(slot, ending)
        table, seat = self._tables[slot], self._seat[slot]
        assert table is not None
        self._standing[slot] = SlotState.BUSY
        if table.endings:
            self._release(table)
            return
        fault = f"{seat} was closed from outside" if seat is not None and ending is Ending.BROKEN else ""
        self._stop(table, ending, seat, text, fault)

    def snapshot(self, slot: int) -> Snapshot:
        """Return a snapshot of a slot's episode, of which branches are made. It must be the agent's turn."""
        table = self._tables[slot]
        return snapshot_of(None if table is None else table.machine)

    def close(self) -> None:
        """Discard running episodes and release everything. Toolkits get the time of their deadlines to close."""
        for table in {table for table in self._tables if table is not None}:
            self._drop(table)
        close_machines(self._idle, self.name)
        self._jobs.close()
        self._ready.clear()
        self._gathering.clear()
        self._tables, self._standing = [None] * self.slots, [SlotState.CLOSED] * self.slots

    def _step(self, table: RunningGame, step: Callable[[], MachineReply], going: list[Pending]) -> None:
        """Run a step of a table's episode, and take its reply."""
        try:
            self._take(table, step(), going)
        except BaseException as error:  # An author's fault or an interrupt: `_fail` has it raised.
            self._fail(table, error)

    def _stop(self, table: RunningGame, ending: Ending, seat: Seat, text: str, fault: str) -> None:
        """End a table's episode from outside."""
        assert table.machine is not None
        going: list[Pending] = []
        self._step(table, partial(table.machine.stop, ending, seat, text, fault), going)
        self._jobs.start(going)

    def _take(self, table: RunningGame, reply: MachineReply, going: list[Pending]) -> None:
        """Store the events of a reply. If it is a Pending, add it to `going` instead, for the caller to start."""
        if isinstance(reply, Pending):
            self._jobs.add(table, reply)
            going.append(reply)
            return
        machine = table.machine
        if machine is not None and machine.aside:
            self._jobs.set_aside(machine)
        for seat, event in reply.items():
            if event.ending is not None and not self._alone:  # Other seats may still wait for their agents.
                table.endings = reply
                self._release(table)
                return
            if event.ending is not None or seat in table.slots:
                self._ready[event.slot] = event

    def _go_on(self) -> None:
        """Continue all episodes whose Pendings are complete, in slot order."""
        while self._jobs.landed:
            landed, self._jobs.landed = sorted(self._jobs.landed, key=lambda pending: pending.slot), []
            going: list[Pending] = []
            for pending in landed:
                machine = pending.owner.machine
                if machine is not None:
                    self._step(pending.owner, partial(machine.resume, pending), going)
            self._jobs.start(going)

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

    def discard(self, slot: int) -> None:
        """Drop the episode in the slot without an event for it. Its game ends for the other seats."""
        table, seat = self._tables[slot], self._seat[slot]
        self._tables[slot], self._standing[slot] = None, SlotState.FREE
        self._ready.pop(slot, None)
        if table is None or table.slots.get(seat) != slot:
            return
        if len(table.slots) == 1:
            self._drop(table)
            return
        del table.slots[seat], table.starts[seat]
        if table.endings:
            self._release(table)
        elif table.machine is not None:
            self._stop(table, Ending.TURN_LIMIT, seat, "", f"{seat} was taken away from the game")

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
        self._jobs.give_up(table)
        table.machine.discard()
        self._jobs.set_aside(table.machine)
        self._retire(table, in_use)

    def _retire(self, table: RunningGame | None, in_use: bool = False) -> None:
        """Free the table's machine for another table, unless jobs may still use it."""
        if table is None or table.machine is None:
            return
        if not in_use:
            self._idle[table.env].append(table.machine)
        table.machine = None
