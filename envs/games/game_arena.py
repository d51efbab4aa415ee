"""GameArena: many games at once, each seat's play an ordinary episode in a slot of its own.

`begin` seats a player: those whose starts agree in task and seed play one game, which opens when its last seat is
taken. A seat hears nothing while the others are at it. A game ends as a whole: endings come together, once no seat is
with its agent any more, so that a game that broke can be begun again by every seat. When one seat cannot go on (its
tokens ran out), its ending is its own; the others end TURN_LIMIT with a fault that names it: scored on what exists,
not blamed, and left out of training. Games of one seat are how foreign Gymnasium environments are played.

Left out: what a game is (`match`), tools' threads (`runner`).
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

from palaestra.envs.games.match import Events, Match, Seat
from palaestra.envs.running.errands import Work
from palaestra.envs.running.inbox import Inbox, Turn
from palaestra.envs.running.runner import Runner
from palaestra.episode import Ending, Event, Start
from palaestra.errors import Broken, UsageError

log = logging.getLogger("palaestra.envs")
_MAX_WORKERS = 64
_PAUSE = 0.005
"""Seconds to rest where nothing can come before another seat is begun."""


class _State(Enum):
    FREE = "free: no episode runs there; begin one"
    WAITING = "waiting for the other seats of its game, or for its event to be received; call recv"
    ASKED = "waiting for the agent"


@dataclass(slots=True, eq=False)
class _Game:
    """A game that gathers its seats, is played, or is over and not reported yet."""

    match: Match | None = None
    slots: dict[Seat, int] = field(default_factory=dict)
    starts: dict[Seat, Start] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    step: Work | None = None
    """What is being done to it in a thread."""
    queue: deque[Callable[[], Events]] = field(default_factory=deque)
    """What is to be done when that is done."""
    endings: Events = field(default_factory=dict)


class GameArena:
    """`slots` seats' places. `palaestra.arena` opens it."""

    def __init__(
        self,
        make: Callable[[], Match],
        slots: int,
        *,
        name: str,
        ordered: bool | None = None,
        max_workers: int | None = None,
        timeout: float = 60.0,
        hint: str = "",
    ) -> None:
        """`timeout` is our deadline for one step of a game that runs in a thread, and for a game to find its seats.

        `hint` is what else can be done, for whoever begins a seat that it does not have.
        With `ordered`, `recv` waits for every step that runs, whatever its own timeout: curves repeat.
        """
        self._make, self._name, self._timeout, self._hint = make, name, timeout, hint
        if not timeout > 0:
            raise UsageError(f"timeout is {timeout!r}; expected a positive number of seconds")
        first = make()
        self._idle: list[Match] = [first]
        self._seats = tuple(first.seats)
        self._task_count = first.task_count
        self._inline = first.inline
        if slots < 1:
            raise UsageError(f"{name}: {slots} slots play nothing; expected at least {len(self._seats)}")
        if slots < len(self._seats):
            raise UsageError(f"{name} has the seats {', '.join(map(str, self._seats))}; {slots} slots do not hold them")
        self._slots = slots
        self._barrier = self._inline if ordered is None else ordered
        self._runner = Runner(min(slots, _MAX_WORKERS) if max_workers is None else max_workers)
        self._inbox = Inbox(name)
        self._news: list[Turn] = []
        self._games: list[_Game | None] = [None] * slots
        self._seat: list[Seat] = [None] * slots
        self._state = [_State.FREE] * slots
        self._ready: dict[int, Event] = {}
        self._gathering: dict[tuple[int, int], list[_Game]] = {}
        self._running: dict[Turn, _Game] = {}

    @property
    def slots(self) -> int:
        """How many seats can be taken at once."""
        return self._slots

    @property
    def seats(self) -> tuple[str, ...]:
        """Who plays in a game; empty where there is one, which has no name."""
        return tuple(seat for seat in self._seats if seat is not None)

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""
        return self._task_count

    @property
    def ordered(self) -> bool:
        """True when `recv` reports every slot that the agent has served. Seats that wait for each other never do."""
        return self._barrier and len(self._seats) == 1

    def begin(self, slot: int, start: Start) -> None:
        """Take a seat. On a live slot the running episode is discarded, and its game ends for the others."""
        self._require_slot(slot)
        self._vacate(slot)
        seat = self._seat_of(start)
        games = self._gathering.setdefault((start.task, start.seed), [])
        game = next((game for game in games if seat not in game.slots), None)
        if game is None:
            game = _Game()
            games.append(game)
        game.slots[seat], game.starts[seat] = slot, start
        self._games[slot], self._seat[slot], self._state[slot] = game, seat, _State.WAITING
        if len(game.slots) == len(self._seats):
            self._ungather(game)
            game.match = self._idle.pop() if self._idle else self._make()
            self._do(game, partial(game.match.open, game.starts))

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn."""
        for slot, text in actions.items():
            self._require_asked(slot, "send")
            if not isinstance(text, str):
                raise UsageError(f"send: slot {slot} got {type(text).__name__}; expected str, the agent's whole turn")
        for slot, text in actions.items():
            game = self._heard(slot)
            assert game.match is not None
            self._do(game, partial(game.match.act, {self._seat[slot]: text}))

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """At least `min_ready` events, unless the timeout passes or no more can come before somebody acts."""
        until = None if timeout is None else time.monotonic() + timeout
        if self._barrier:
            min_ready, until = self._slots, None  # Every step has a deadline of its own.
        while self._running and len(self._ready) < max(min_ready, 1) and self._hear(until):
            pass
        while self._running and self._hear(0.0):  # Whatever else has come in.
            pass
        if not self._ready and not self._running and _State.ASKED not in self._state:
            self._rest(timeout)
        events = [self._ready.pop(slot) for slot in sorted(self._ready)]
        for event in events:
            self._state[event.slot] = _State.ASKED if event.ending is None else _State.FREE
            if event.ending is not None:
                self._games[event.slot] = None
        return events

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """Close a seat's episode from outside, and so its game; the events come through `recv`."""
        self._require_asked(slot, "finish")
        if ending is Ending.ANSWERED:
            raise UsageError("finish(ANSWERED): an answer is a turn without a call, given with send")
        game, seat = self._heard(slot), self._seat[slot]
        assert game.match is not None
        fault = "closed from outside" if seat is None else f"{seat} was closed from outside"
        self._do(game, partial(game.match.stop, ending, seat, text, fault if ending is Ending.BROKEN else ""))

    def close(self) -> None:
        """Discard what runs and release everything."""
        games = {game for game in self._games if game is not None and game.step is None}
        matches = [*self._idle, *(game.match for game in games if game.match is not None)]
        self._games, self._state = [None] * self._slots, [_State.FREE] * self._slots
        for held in (self._idle, self._ready, self._gathering, self._running):
            held.clear()
        self._runner.close()
        for match in matches:
            try:
                match.close()
            except Exception as error:
                log.warning("%s did not close: %s: %s", self._name, type(error).__name__, error)

    # Inside.

    def _do(self, game: _Game, work: Callable[[], Events]) -> None:
        """Have something done to a game, after what is being done."""
        game.queue.append(work)
        if game.step is None:
            self._next(game)

    def _next(self, game: _Game) -> None:
        """Do what waits, and report the end once nobody is at it."""
        while game.queue and not game.endings:
            work = game.queue.popleft()
            if not self._inline:
                game.step = Work(work, self._timeout)
                turn = Turn(next(iter(game.slots.values()), -1), [game.step.call()], self._inbox)
                self._running[turn] = game
                self._runner.start((turn,))
                return
            self._settle(game, work)
        if game.endings or not game.slots:
            game.queue.clear()
            self._release(game)

    def _hear(self, until: float | None) -> bool:
        """Wait for steps that are done, or late; False where `until` came first."""
        done, late = self._inbox.wait(until)
        self._news += done
        heard = late is not None or bool(self._news)
        if late is not None:
            self._overdue(late.turn)
        while self._news:  # Kept until it is taken down: an author's game may raise at any of them.
            turn = self._news.pop(0)
            game = self._running.pop(turn, None)
            if game is not None and game.step is not None:
                step, game.step = game.step, None
                self._settle(game, partial(step.outcome, turn.calls))
                self._next(game)
        return heard

    def _overdue(self, turn: Turn) -> None:
        """A step passed its deadline. A thread may still be in the match, so it is never used again."""
        self._runner.abandon(turn)
        game = self._running.pop(turn)
        match, game.match, game.step = game.match, None, None
        assert match is not None
        fault = f"{self._name}, task {self._task_of(game)}: a step gave no result in {self._timeout:g} s"
        game.endings = match.stop(Ending.BROKEN, fault=fault)
        self._next(game)

    def _settle(self, game: _Game, work: Callable[[], Events]) -> None:
        """Take down what came of a step. An error of the game's author frees its slots and goes on to the caller."""
        assert game.match is not None
        try:
            events = work()
        except Broken as error:
            events = game.match.stop(Ending.BROKEN, fault=f"{self._name}: {error}")
        except BaseException:  # Raised again; whatever it is, no slot may stay taken by a game that is gone.
            for slot in game.slots.values():
                self._games[slot], self._state[slot] = None, _State.FREE
                self._ready.pop(slot, None)
            raise
        if any(event.ending is not None for event in events.values()):
            game.endings = events
            return
        for seat, event in events.items():
            if seat in game.slots:
                self._ready[game.slots[seat]] = replace(event, slot=game.slots[seat], start=game.starts[seat])

    def _release(self, game: _Game) -> None:
        """Report a game's end, unless an agent is still thinking about its turn."""
        if any(self._state[slot] is _State.ASKED for slot in game.slots.values()):
            return
        for seat, slot in game.slots.items():
            self._ready[slot] = replace(game.endings[seat], slot=slot, start=game.starts[seat])
        if game.match is not None:
            self._idle.append(game.match)
            game.match = None

    def _heard(self, slot: int) -> _Game:
        """The agent has spoken for this slot."""
        game = self._games[slot]
        assert game is not None
        self._state[slot] = _State.WAITING
        return game

    def _vacate(self, slot: int) -> None:
        """Discard whatever the slot holds."""
        game, seat = self._games[slot], self._seat[slot]
        self._games[slot], self._state[slot] = None, _State.FREE
        self._ready.pop(slot, None)
        if game is None:
            return
        del game.slots[seat], game.starts[seat]
        if game.match is None and not game.endings:
            if not game.slots:
                self._ungather(game, (key for key, games in self._gathering.items() if game in games))
        elif game.endings or not game.slots:
            if game.step is None:
                self._next(game)
        elif game.match is not None:
            fault = f"{seat} was taken away from the game"
            self._do(game, partial(game.match.stop, Ending.TURN_LIMIT, seat, "", fault))

    def _ungather(self, game: _Game, keys: Any = None) -> None:
        """A game no longer waits for seats."""
        if keys is None:
            start = next(iter(game.starts.values()))
            keys = [(start.task, start.seed)]
        for key in list(keys):
            self._gathering[key].remove(game)
            if not self._gathering[key]:
                del self._gathering[key]

    def _rest(self, timeout: float | None) -> None:
        """Nothing can come until a seat is begun; an error where none can be, or none was for long."""
        games = [game for games in self._gathering.values() for game in games]
        full = _State.FREE not in self._state
        late = [game for game in games if full or time.monotonic() - game.began > self._timeout]
        if late or (games and timeout is None):
            game = (late or games)[0]
            missing = ", ".join(str(seat) for seat in self._seats if seat not in game.slots)
            start = next(iter(game.starts.values()))
            why = "every slot is taken" if full else f"{self._timeout:g} s have passed" if late else "recv would wait"
            raise UsageError(
                f"{self._name}: the game of task {start.task}, seed {start.seed} waits for {missing}, and {why}; "
                "begin every seat of a game, one game after the other, with the same task and seed"
            )
        if games and timeout:
            time.sleep(min(timeout, _PAUSE))

    def _seat_of(self, start: Start) -> Seat:
        if start.seat not in self._seats:
            if self._seats == (None,):
                raise UsageError(f"{self._name} has one seat; expected Start(seat=None), found seat={start.seat!r}")
            raise UsageError(
                f"{self._name} has no seat {start.seat!r}; expected Start(seat=) to be one of "
                f"{', '.join(map(repr, self._seats))}{self._hint}"
            )
        return start.seat

    def _task_of(self, game: _Game) -> int | str:
        return next((start.task for start in game.starts.values()), "?")

    def _require_slot(self, slot: int) -> None:
        if not 0 <= slot < self._slots:
            raise UsageError(f"slot {slot} does not exist; expected 0 to {self._slots - 1}")

    def _require_asked(self, slot: int, verb: str) -> None:
        self._require_slot(slot)
        if self._state[slot] is not _State.ASKED:
            raise UsageError(f"{verb}: slot {slot} is {self._state[slot].value}")
