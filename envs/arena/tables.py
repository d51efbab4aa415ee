"""Slots of an arena, its running games (tables), and games that wait until all their seats are taken.

Left out: playing a game (`arena`).
"""

import logging
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from palaestra.envs.arena.playable import Asking, Playable
from palaestra.envs.core.state import Events, Seat
from palaestra.envs.running.work import Pending
from palaestra.episode import Ending, Event, Start, Task
from palaestra.errors import UsageError

log = logging.getLogger("palaestra.envs")
_PAUSE = 0.005
"""Seconds to sleep where nothing can come before another seat is begun."""


class SlotState(Enum):
    """State of a slot."""

    FREE = "free: no episode runs there; begin one (with step: pass None for it, or reset it by options['reset_mask'])"
    ASKED = "waiting for the agent"
    BUSY = "busy: its event has not been received yet, or other seats of its game are at it; call recv"
    CLOSED = "closed with its environment; make a new one"


class RunningGame:
    """A running game: its machine and the slots of its seats."""

    machine: Playable | None = None
    """Machine of the game, from when its last seat is taken until its endings are reported; else None."""
    endings: Events = {}  # noqa: RUF012  (Replaced, never changed.)
    """Endings of its seats, until they are reported; empty while it runs."""
    began = 0.0
    """Time when its first seat was taken, if it waits for others; on the monotonic clock."""

    env = ""
    """Name by which the arena has machines of its environment."""

    def __init__(self, seat: Seat, slot: int, start: Start) -> None:
        self.slots, self.starts = {seat: slot}, {seat: start}
        self.out: list[Pending] = []


class WaitingGames:
    """Games that wait for more seats. Starts with the same task and seed belong to one game."""

    def __init__(self, name: str, seats: Sequence[Seat], timeout: float) -> None:
        if not timeout > 0:
            raise UsageError(f"timeout is {timeout!r}; expected a positive number of seconds")
        self._name, self._seats, self._timeout = name, seats, timeout
        self._tables: dict[tuple[int, int], list[RunningGame]] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def seated(self, seat: Seat, slot: int, start: Start) -> RunningGame:
        """Take a seat and return its game: one that still lacks this seat, or a new one."""
        tables = self._tables.setdefault((start.task, start.seed), [])
        waiting = next((table for table in tables if seat not in table.slots), None)
        if waiting is None:
            waiting = RunningGame(seat, slot, start)
            waiting.began = time.monotonic()
            tables.append(waiting)
        waiting.slots[seat], waiting.starts[seat] = slot, start
        if len(waiting.slots) == len(self._seats):
            self.leave(waiting)
        return waiting

    def leave(self, table: RunningGame) -> None:
        """Remove a game that no longer waits for seats."""
        for key, tables in list(self._tables.items()):
            if table in tables:
                tables.remove(table)
            if not tables:
                del self._tables[key]

    def clear(self) -> None:
        """Forget all games that wait for seats."""
        self._tables.clear()

    def wait_for_seats(self, full: bool, timeout: float | None) -> None:
        """Sleep for a moment, because no event can come before a seat is begun. Raise a UsageError if no slot is free
        (`full`), if a game has waited too long, or if `timeout` is None: the caller would wait for ever."""
        tables = [table for tables in self._tables.values() for table in tables]
        late = [table for table in tables if full or time.monotonic() - table.began > self._timeout]
        if late or timeout is None:
            table = (late or tables)[0]
            missing = ", ".join(str(seat) for seat in self._seats if seat not in table.slots)
            start = next(iter(table.starts.values()))
            why = "every slot is taken" if full else f"{self._timeout:g} s have passed" if late else "recv would wait"
            raise UsageError(
                f"{self._name}: the game of task {start.task}, seed {start.seed} waits for {missing}, and {why}; "
                "begin every seat of a game, one game after the other, with the same task and seed"
            )
        if timeout:
            time.sleep(min(timeout, _PAUSE))


class ArenaSlots:
    """Slots of an arena, with the state of each, and the events that are ready for the caller."""

    parallel = False
    """True if an episode may ask for several turns at once: `more` returns the further ones."""
    _problems: Any = None
    """Source of the tasks by their numbers; None where tasks are known only when they are played."""

    def __init__(self, name: str, seats: Sequence[Seat], slots: int, hint: str, timeout: float) -> None:
        if slots < len(seats):
            needed = f", one for each of {', '.join(map(str, seats))}" if len(seats) > 1 else ""
            raise UsageError(f"{name}: found {slots} slots; expected at least {len(seats)}{needed}")
        self.name, self._seats, self.hint = name, tuple(seats), hint
        self._alone = len(self._seats) == 1
        self._standing = [SlotState.FREE] * slots
        self._tables: list[RunningGame | None] = [None] * slots
        self._ready: dict[int, Event] = {}
        self._errors: list[Any] = []
        """Errors of an author's code; `recv` raises them one by one."""
        self._gathering = WaitingGames(name, self._seats, timeout)

    @property
    def slots(self) -> int:
        """Number of slots, and so of seats that can be taken at once."""
        return len(self._standing)

    @property
    def seats(self) -> tuple[str, ...]:
        """Names of the seats of a game; empty if there is one seat, which has no name."""
        return tuple(seat for seat in self._seats if seat is not None)

    @property
    def reward_parts(self) -> tuple[tuple[str, ...], ...]:
        """Names of the reward's parts, as each environment's author declares them; empty if none are declared."""
        return () if self._problems is None else (tuple(self._problems.parts),)

    def problem(self, task: int) -> Task | None:
        """Return the task of that number; None for an environment that shows its tasks only as it plays them."""
        return None if self._problems is None else self._problems.task(task)

    def more(self) -> list[Event]:
        """Return events of further turns that running episodes ask for, while their first ones are not answered."""
        if not self.parallel:
            return []
        tables: Sequence[Any] = [
            table for table, standing in zip(self._tables, self._standing, strict=True) if standing is SlotState.ASKED
        ]
        machines = [table.machine for table in tables]
        return [event for machine in machines if isinstance(machine, Asking) for event in machine.more()]

    def _table(self, slot: int, start: Start) -> RunningGame:
        """Take the seat of a start and return its game: a new one, or one that waits for this seat."""
        return RunningGame(start.seat, slot, start) if self._alone else self._gathering.seated(start.seat, slot, start)

    def _report(self, outstanding: int, timeout: float | None) -> list[Event]:
        """Return the ready events, in slot order. If there is an author's error, raise that and keep the events."""
        if self._errors:
            raise self._errors.pop(0)
        if not self._ready and not outstanding and self._gathering and SlotState.ASKED not in self._standing:
            self._gathering.wait_for_seats(SlotState.FREE not in self._standing, timeout)
        ready, self._ready = self._ready, {}
        events = [ready[slot] for slot in sorted(ready)]
        standing, asked_standing, free = self._standing, SlotState.ASKED, SlotState.FREE
        for event in events:
            standing[event.slot] = asked_standing if event.ending is None else free
        return events

    def _require_seat(self, seat: Seat) -> None:
        if seat in self._seats:
            return
        if self._seats == (None,):
            raise UsageError(f"{self.name} has one seat; expected Start(seat=None), found seat={seat!r}")
        raise UsageError(
            f"{self.name} has no seat {seat!r}; expected Start(seat=) to be one of "
            f"{', '.join(map(repr, self._seats))}{self.hint}"
        )

    def _require_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise UsageError(f"slot {slot} does not exist; expected 0 to {self.slots - 1}")
        if self._standing[slot] is SlotState.CLOSED:
            raise UsageError(f"slot {slot} is {SlotState.CLOSED.value}")

    def _require_asked(self, verb: str, slot: int) -> None:
        self._require_slot(slot)
        if self._standing[slot] is not SlotState.ASKED:
            raise UsageError(f"{verb}: slot {slot} is {self._standing[slot].value}")

    def _require_turns(self, actions: Mapping[int, str]) -> None:
        standing, asked_standing, slots = self._standing, SlotState.ASKED, len(self._standing)
        for slot, text in actions.items():
            if not 0 <= slot < slots or standing[slot] is not asked_standing:
                self._require_asked("send", slot)
            if not isinstance(text, str):
                raise UsageError(f"send: slot {slot} got {type(text).__name__}; expected str, the agent's whole turn")

    def _require_finish(self, slot: int, ending: Ending) -> None:
        self._require_asked("finish", slot)
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with send")


def close_machines(idle: dict[str, list[Playable]], name: str) -> None:
    """Close the machines that play no episode. `idle` has them by environment, and is empty afterwards."""
    for machine in [machine for machines in idle.values() for machine in machines]:
        try:
            machine.close()
        except Exception as error:
            log.warning("%s did not close: %s: %s", name, type(error).__name__, error)
    idle.clear()
