"""Slots: many episodes of one environment at once, as palaestra's Arena.

Inline tools run in place, async ones on a background loop, blocking ones in a pool of threads, long computations in
processes; results are recorded in the thread that calls `recv`. Nothing waits without a deadline: a late call ends its
slot's episode BROKEN, and the slot gets a fresh environment. Left out: Gymnasium's face (`vector`), seats of a game.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from palaestra.envs.core.calls import Prepared, run
from palaestra.envs.core.env import ToolEnv
from palaestra.envs.core.tool import Mode
from palaestra.envs.core.verdict import Verdict, waits
from palaestra.envs.running.errands import Closing, Opening, kit_tools
from palaestra.envs.running.inbox import STALL_SHARE, Inbox, Stall, Turn
from palaestra.envs.running.loop import Lag
from palaestra.envs.running.runner import Runner
from palaestra.envs.running.states import State, require_slot, require_waiting
from palaestra.episode import Call, Ending, Event, Start
from palaestra.errors import UsageError

log = logging.getLogger("palaestra.envs")
_BATCH = 128
"""Turns that start together: large enough that waking who runs them costs little, small enough that the first calls
wait while the last are still read."""
_HEARD = 256
"""Turns that are waited for at most, so that some are recorded while others still run. Whoever is woken more often
stands in the way of the threads that bring the results."""
_BREATH = 50e-6
"""Seconds in which we leave the interpreter to those who were just woken for a batch: they would otherwise wait for it
until we had read on for 5 ms."""


class Slots:
    """`slots` places where episodes of one environment are played."""

    def __init__(
        self, make: Callable[[], ToolEnv], count: int, env_id: str, ordered: bool | None, max_workers: int
    ) -> None:
        self.env_id = env_id
        self._make = make
        self.envs = [make() for _ in range(count)]
        self._tasks = self.envs[0].tasks
        self._errands = self.envs[0].toolkits_wait
        for slot, env in enumerate(self.envs):
            self._adopt(slot, env)
        self._ordered = ordered
        self._runner = Runner(max_workers)
        self._inbox = Inbox(env_id or type(self.envs[0]).__name__)
        self._state = [State.FREE] * count
        self._out: dict[int, Turn] = {}
        """What each busy slot waits for: its calls, or an errand."""
        self._aside: set[Turn] = set()
        """Toolkits that close although their slot has gone on."""
        self._settled: dict[int, list[Call]] = {}
        """Turns whose calls are all in, to be recorded by recv."""
        self._news: list[Turn] = []
        self._ready: dict[int, Event] = {}

    @property
    def slots(self) -> int:
        """How many episodes can run at once."""
        return len(self.envs)

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""
        return len(self._tasks)

    @property
    def ordered(self) -> bool:
        """True when `recv` waits for every outstanding slot and reports in slot order."""
        if self._ordered is None:
            env = self.envs[0]
            tools = [*env._tools.values(), *(one for kit in env.toolkits for one in kit_tools(kit))]
            self._ordered = all(one.mode is Mode.INLINE for one in tools) and not waits(env.reward)
        return self._ordered

    @property
    def loop_lag(self) -> Lag:
        """How late the event loop was: near 0, unless a tool holds it or the machine is overloaded."""
        return self._runner.lag

    def stalls(self, share: float = STALL_SHARE) -> list[Stall]:
        """The calls that have taken more than this share of their deadline, or have waited so long to begin."""
        found = [job.stall() for turn in (*self._out.values(), *self._aside) for job in turn.jobs if not job.over]
        return [stall for stall in found if stall.seconds > share * stall.timeout]

    def begin(self, slot: int, start: Start) -> None:
        """Open an episode. On a live slot the running one is discarded without a reward."""
        require_slot(self._state, slot)
        live = self._clear(slot)
        self._open(slot, live, start)

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn. Inline tools run before this returns."""
        require_waiting(self._state, actions, "send")
        for slot, action in actions.items():
            if not isinstance(action, str):
                raise UsageError(f"send: slot {slot} got {type(action).__name__}; expected str, the agent's whole turn")
        envs, settled, state, busy, inline = self.envs, self._settled, self._state, State.BUSY, Mode.INLINE
        turns: list[Turn] = []
        try:
            for slot, action in actions.items():
                prepared = envs[slot].open_turn(action)
                state[slot] = busy
                for item in prepared:
                    if item.mode is not inline:
                        break
                else:
                    settled[slot] = list(map(run, prepared))
                    continue
                turns.append(self._board(slot, prepared))
                if len(turns) == _BATCH:
                    boarded, turns = turns, []
                    self._runner.start(boarded)
                    time.sleep(_BREATH)
        finally:
            self._runner.start(turns)

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """At least `min_ready` events, unless the timeout passes or fewer are outstanding.

        When `ordered`, a barrier: every outstanding event in slot order, or none where the timeout passes first.
        """
        until = None if timeout is None else time.monotonic() + timeout
        now = 0.0
        while self._out and self._hear(now):  # Whatever has come in by itself.
            pass
        while True:
            if not (self.ordered and self._out):
                self._record()
            missing = len(self._out) if self.ordered else min(len(self._out), max(min_ready, 1) - len(self._ready))
            if missing <= 0:
                break
            if not self._hear(until, missing):
                if self.ordered:
                    return []
                break
        ready, self._ready = self._ready, {}
        events = [ready[slot] for slot in sorted(ready)]
        state, waiting, free = self._state, State.WAITING, State.FREE
        for event in events:
            state[event.slot] = waiting if event.ending is None else free
        return events

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """Close an episode from outside; the event comes through `recv`."""
        require_waiting(self._state, (slot,), "finish")
        self._close_turn(slot, self.envs[slot].finishing, ending, text)
        self._state[slot] = State.BUSY

    # Inside.

    def _open(self, slot: int, live: bool, start: Start, *, reseed: bool = True) -> None:
        """Begin an episode in place, or start its toolkits as an errand."""
        env = self.envs[slot]
        if self._errands:
            env.lay_out(start, reseed=reseed)
            opening = Opening(env, live)
            self._state[slot] = State.BUSY
            self._runner.start((self._board(slot, [opening.call()], opening),))
        else:
            self._ready[slot] = env.begin(start, reseed=reseed)
            self._state[slot] = State.BUSY

    def _board(self, slot: int, prepared: list[Prepared], errand: Opening | Closing | Verdict | None = None) -> Turn:
        """What the slot waits for from now on; the runner has to start it."""
        turn = self._out[slot] = Turn(slot, prepared, self._inbox, errand)
        return turn

    def _hear(self, until: float | None, count: int = 1) -> bool:
        """Wait for news, of `count` slots if possible, and take it in; False where `until` came first."""
        news, late = self._inbox.wait(until, min(count, _HEARD))
        if late is not None:
            self._late(late.turn, late.prepared)
            return True
        self._news += news
        heard = bool(self._news)
        while self._news:  # Kept until it is taken in: an author's reward may raise at any of them.
            turn = self._news.pop()
            if self._out.get(turn.slot) is turn:
                del self._out[turn.slot]
                self._land(turn)
            else:
                self._aside.discard(turn)  # Or it finished just before it was abandoned.
        return heard

    def _land(self, turn: Turn) -> None:
        slot, errand = turn.slot, turn.errand
        if errand is None:
            self._settled[slot] = turn.calls
        elif isinstance(errand, Closing):
            assert errand.event is not None
            self._ready[slot] = errand.event
        elif isinstance(errand, Opening):
            self._close_turn(slot, errand.event, turn.calls)
        else:
            self._close_turn(slot, errand.event)

    def _late(self, turn: Turn, late: Prepared) -> None:
        """A call passed its deadline. Its environment may still be in use by a thread."""
        if turn in self._aside:
            self._aside.discard(turn)
            self._runner.abandon(turn)
            seconds = self.envs[turn.slot].close_timeout
            log.warning("%s: toolkits did not close within %g s", self._inbox.env_id, seconds)
            return
        slot, errand = turn.slot, turn.errand
        del self._out[slot]
        env = self.envs[slot]
        self._replace(turn)
        if isinstance(errand, Closing):
            log.warning("%s slot %d: toolkits did not close in time", self._inbox.env_id, slot)
            assert errand.event is not None
            self._ready[slot] = errand.event
        elif isinstance(errand, Verdict):
            self._ready[slot] = errand.event()
        else:
            self._ready[slot] = env.finish(Ending.BROKEN, fault=env.late(late))

    def _record(self) -> None:
        """Turn the results that are in into events, in slot order."""
        for slot in sorted(self._settled):
            self._close_turn(slot, self.envs[slot].closing, self._settled.pop(slot))

    def _close_turn(self, slot: int, close: Callable[..., Event | Verdict], *arguments: Any) -> None:
        """A step of the machine. Where an author's reward raises, the slot is free and the rest is kept."""
        try:
            found = close(*arguments)
        except BaseException:
            self._state[slot] = State.FREE
            self._set_aside(slot)
            raise
        if isinstance(found, Verdict):
            self._runner.start((self._board(slot, [found.call()], found),))
        elif self._errands and found.ending is not None and (env := self.envs[slot])._kits:
            closing = Closing(env._kits, found)
            self._runner.start((self._board(slot, [closing.call(env.close_timeout)], closing),))
        else:
            self._ready[slot] = found

    def _adopt(self, slot: int, env: ToolEnv) -> None:
        env.slot = slot
        env._set = self._tasks  # One task set for all: fixed data is loaded once.
        if self.env_id:
            env.spec = gymnasium.registry.get(self.env_id)
        if self._errands:
            env.closes_toolkits = False

    def _replace(self, turn: Turn) -> None:
        """Put a fresh environment into the slot; the old one's toolkits close aside, unless that is what hangs."""
        self._runner.abandon(turn)
        if isinstance(turn.errand, Opening):
            turn.errand.drop()
        if not isinstance(turn.errand, Closing):
            self._set_aside(turn.slot)
        self.envs[turn.slot] = self._make()
        self._adopt(turn.slot, self.envs[turn.slot])

    def _set_aside(self, slot: int) -> None:
        """Close a slot's toolkits on a thread; the slot does not wait for them, and gets new ones."""
        env = self.envs[slot]
        kits, env._kits = env._kits, None
        if kits:
            turn = Turn(slot, [Closing(kits).call(env.close_timeout)], self._inbox)
            self._aside.add(turn)
            self._runner.start((turn,))

    def _clear(self, slot: int) -> bool:
        """Discard whatever the slot holds; True where toolkits are left to be closed."""
        if self._state[slot] is State.CLOSED:
            raise UsageError(f"slot {slot} is {State.CLOSED.value}")
        flight = self._out.pop(slot, None)
        if flight is not None:
            self._replace(flight)
        self._settled.pop(slot, None)
        self._ready.pop(slot, None)
        env = self.envs[slot]
        live = env.is_open and self._errands
        env.discard()
        self._state[slot] = State.FREE
        return live

    def _close_slots(self) -> None:
        """Discard what runs and release everything, within the time that toolkits have to close."""
        for slot in range(len(self.envs)):
            if self._clear(slot):
                self._set_aside(slot)
            self.envs[slot].close()
        until = time.monotonic() + self.envs[0].close_timeout
        while self._aside and self._hear(until):
            pass
        for turn in self._aside:
            self._runner.abandon(turn)
        self._aside.clear()
        self._runner.close()
        self._state = [State.CLOSED] * len(self._state)
