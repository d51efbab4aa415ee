"""The loop that plays episodes: an agent plays one episode for each `Start` of an iterator.

Training, evaluation and collection all use this loop. As soon as the tools of an episode have answered, the agent's
next turn is sampled; no episode waits for slower ones. The loop uses only two interfaces, `Engine` and `Arena`. Left
out: the training reward (`trainers`), and the number of episodes. The iterator decides it; it yields None if it has no
start now and must be asked again later.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from palaestra.agents.agent import Agent
from palaestra.agents.conversation import Conversation
from palaestra.agents.policies.table import trained_engines
from palaestra.agents.running_episode import RunningEpisode
from palaestra.agents.token_limits import TokenLimits
from palaestra.episode import Ending, Episode, Event, Start
from palaestra.errors import UsageError
from palaestra.protocols import Arena, Request, TooLong

log = logging.getLogger("palaestra.agents")
ReplyT = TypeVar("ReplyT")
REPORT_SECONDS = 10.0
"""Seconds of waiting for tools, servers or scores after which the log says so, and the interval of later reports."""
_MAX_NAMED_CALLS = 3
"""Maximum number of slow calls that such a report names."""
_ALTERNATION_SECONDS = 0.005
"""Seconds to wait for engine or arena while the other has work: faster, measured, than spinning or one long wait."""
_IDLE_SECONDS = 1.0
"""Seconds to wait for engine or arena when it alone has work, before the loop continues."""
_GATHER_SECONDS = 0.02
"""Seconds to wait for all events if nothing can be decoded meanwhile: rows that come together decode together."""
_ROUNDS_WITHOUT_WAIT = 8
"""Number of rounds without waiting after a round in which tools were slower than `_ALTERNATION_SECONDS`."""


def play(
    agent: Agent,
    arena: Arena,
    starts: Iterable[Start | None],
    *,
    limits: TokenLimits | None = None,
    temperature: float = 1.0,
    still_needed: Callable[[Start], bool] | None = None,
    obey_temperature: bool = False,
) -> Generator[Episode, None, None]:
    """Play an episode for each start, and yield each episode as it ends.

    A BROKEN episode is played once more; if it is BROKEN again, it is yielded without a reward. A running episode is
    dropped when `still_needed` returns False for its start. When the generator is closed, all running ones are dropped.
    With `obey_temperature`, an environment that wishes a temperature for a turn gets it, unless `temperature` is 0.
    """
    if any(getattr(engine, "released", False) for engine in trained_engines(agent)):
        raise UsageError("the engine's memory is released, so it samples nothing; call engine.reclaim() before play")
    table = _Table(agent, arena, iter(starts), limits or TokenLimits(), temperature, obey_temperature)
    try:
        while table.fill():
            if still_needed is not None:
                table.drop_unless(still_needed)
            table.serve_engine()
            yield from table.serve_arena()
    finally:
        table.drop_unless(lambda start: False)


class _Table:
    """State of the loop: which slot runs which episode, and whether it waits for the engine or for the arena."""

    def __init__(
        self,
        agent: Agent,
        arena: Arena,
        starts: Iterator[Start | None],
        limits: TokenLimits,
        temperature: float,
        obey_temperature: bool,
    ) -> None:
        self.agent, self.arena, self.starts = agent, arena, starts
        self.limits, self.temperature, self.obey_temperature = limits, temperature, obey_temperature
        self.more: Callable[[], list[Event]] = (
            getattr(arena, "more", list) if getattr(arena, "parallel", False) else list
        )
        """Returns events of further turns of episodes that wait for the engine already."""
        self.warned = False
        """True after the warning that an environment wishes another temperature than it gets."""
        self.seats: dict[int, RunningEpisode] = {}
        self.tickets: dict[int, int] = {}
        self.free = list(range(arena.slots))[::-1]
        self.exhausted = False
        self.hurried = 0
        self.waited = 0.0
        """Seconds since `reported` in which the loop waited and nothing was decoded here."""
        self.reported = time.monotonic()

    def fill(self) -> bool:
        """Begin episodes in the free slots. Return False when all starts are played and no episode runs."""
        while self.free and not self.exhausted:
            try:
                start = next(self.starts)
            except StopIteration:
                self.exhausted = True
                break
            if start is None:
                if not self.seats:
                    self._wait(lambda: time.sleep(_ALTERNATION_SECONDS))
                return True
            slot = self.free.pop()
            self.seats[slot] = RunningEpisode(start)
            self.arena.begin(slot, start)
        return bool(self.seats)

    def drop_unless(self, still_needed: Callable[[Start], bool]) -> None:
        """Drop the episodes that are no longer needed. The arena discards one when its slot begins the next episode."""
        for slot, seat in list(self.seats.items()):
            if not still_needed(seat.start):
                self._withdraw(seat)
                self._leave(slot)

    @property
    def _sampling(self) -> int:
        """Number of episodes that wait for the engine."""
        return len(set(self.tickets.values()))

    def serve_engine(self) -> None:
        """Poll the engine. Send each completed turn to the arena; end the episode if its turn was cut or failed."""
        if not self.tickets:
            return
        arena_busy = self.more is not list or self._sampling < len(self.seats)
        actions: dict[int, str] = {}
        engine, seconds = self.agent.engine, _ALTERNATION_SECONDS if arena_busy else _IDLE_SECONDS
        remote = getattr(engine, "remote", False)
        for completion in self._wait(lambda: engine.poll(seconds)) if remote else engine.poll(seconds):
            slot = self.tickets.pop(completion.ticket, None)
            if slot is None:  # Another turn of its episode was cut just now.
                continue
            if slot in actions:
                self.arena.send({slot: actions.pop(slot)})
            seat = self.seats[slot]
            text = seat.add_response(completion)
            if completion.fault or completion.cut:
                self._withdraw(seat)
                self.arena.finish(slot, Ending.BROKEN if completion.fault else Ending.LENGTH_LIMIT, text)
            else:
                actions[slot] = text
        if actions:
            self._wait(lambda: self.arena.send(actions))  # Tools that run in place run here.

    def serve_arena(self) -> Iterator[Episode]:
        """Receive the arena's events. Request the next turn of each episode that continues; yield those that ended."""
        outstanding = len(self.seats) - self._sampling
        events = self._receive_events(outstanding) if outstanding else []
        for event in [*events, *self.more()]:
            seat = self.seats.get(event.slot)
            if seat is None or event.start.key != seat.start.key or seat.is_stale(event):
                continue  # This event belongs to a dropped episode.
            if event.ending is None:
                self._continue(event, seat)
            elif event.ending is Ending.BROKEN and not seat.retried:
                self.seats[event.slot] = RunningEpisode(seat.start, retried=True, began=seat.began)
                self.arena.begin(event.slot, seat.start)
            else:
                self._leave(event.slot)
                yield seat.ended(event)

    def _receive_events(self, outstanding: int) -> list[Event]:
        """Return the arena's new events.

        Wait briefly for fast tools, because a decode step costs about the same for many rows as for one.
        """
        events: list[Event] = []
        if self.arena.ordered:  # The rows decoded together must not depend on the speed of tools.
            while not events:
                events = self._wait(lambda: self.arena.recv(outstanding, _IDLE_SECONDS))
        elif not self.tickets:
            events = self._wait(lambda: self.arena.recv(outstanding, _GATHER_SECONDS))
        elif self.hurried:
            self.hurried -= 1
            events = self.arena.recv(0, 0.0)
        else:
            events = self.arena.recv(outstanding, _ALTERNATION_SECONDS)
            self.hurried = _ROUNDS_WITHOUT_WAIT * (len(events) < outstanding)
        return events

    def _wait(self, call: Callable[[], ReplyT]) -> ReplyT:
        """Call what may wait and return its result. Log what is waited for, every 10 s while that takes most of the
        time.
        """
        began = time.monotonic()
        result = call()
        now = time.monotonic()
        self.waited += now - began
        if self.waited >= REPORT_SECONDS:
            log.warning("%s", f"play has waited {self.waited:.0f} s for {self._missing()}")
        if self.waited >= REPORT_SECONDS or now - self.reported > 2 * REPORT_SECONDS:
            self.waited, self.reported = 0.0, now
        return result

    def _missing(self) -> str:
        """Return as text what the loop waits for: the slowest calls by name, and answers of a server."""
        # Not every arena can name its calls.
        stalls: Callable[[float], Sequence[Any]] = getattr(self.arena, "stalls", lambda share: [])
        slowest = sorted(stalls(0.0), key=lambda stall: stall.seconds, reverse=True)
        more = len(slowest) - _MAX_NAMED_CALLS
        calls = [*map(str, slowest[:_MAX_NAMED_CALLS]), *([f"and {more} more calls"] if more > 0 else [])]
        playing, sampling = len(self.seats), self._sampling
        tools = f"tools and environments of {playing - sampling} of {playing} episodes" if sampling < playing else ""
        server = f"the model's answers in {sampling} of {playing} episodes" if sampling else ""
        return "; ".join([" and ".join(filter(None, (tools, server))) or "the scores of earlier episodes", *calls])

    def _continue(self, event: Event, seat: RunningEpisode) -> None:
        """Request the agent's next turn from the engine, or end the episode if its row has no room for more tokens."""
        room = self.limits.max_episode_tokens
        seat.save_branch_point(self.arena, event)
        earlier = seat.dialogues.get(event.dialogue)
        conversation = earlier or Conversation(self.agent.chat_of(seat.start.seat), event.messages, event.tools)
        fits = len(conversation.ids) < room if earlier is None else earlier.hear(event.messages, event.tools, room)
        seat.tools.setdefault(event.dialogue, event.tools)
        seat.refused = None if fits else (event.dialogue, conversation)
        if not fits and event.refusable:
            limit = f"This model's maximum context length is {room} tokens"
            reason = f"{limit}, and these messages leave none free; reduce their length"
            self.arena.send({event.slot: TooLong(reason, event.dialogue)})
            return
        if not fits:
            self.arena.finish(event.slot, Ending.LENGTH_LIMIT, "")
            return
        request = Request(
            row=conversation.row,
            start=seat.start.for_engine,
            turn=seat.turn,
            messages=conversation.messages,
            tools=conversation.tools,
            ids=conversation.ids,
            max_tokens=min(self.limits.max_turn_tokens, room - len(conversation.ids), event.max_tokens or room),
            temperature=self._temperature(event, seat.start),
        )
        seat.turn += 1
        seat.opening = seat.opening or conversation
        ticket = self.agent.engine.submit(request)
        seat.open_turns[ticket] = event.dialogue, conversation
        self.tickets[ticket] = event.slot

    def _temperature(self, event: Event, start: Start) -> float:
        """Return the temperature of a turn, and warn once of a wish of the environment that is not followed."""
        chosen = 0.0 if start.greedy else self.temperature
        if event.temperature is None or event.temperature == chosen:
            return chosen
        if self.obey_temperature and chosen > 0:
            return event.temperature
        if not self.warned:
            self.warned = True
            log.warning(
                "%s", f"the environment wishes the temperature {event.temperature:g}; turns are sampled at {chosen:g}"
            )
        return chosen

    def _leave(self, slot: int) -> None:
        del self.seats[slot]
        self.free.append(slot)

    def _withdraw(self, seat: RunningEpisode) -> None:
        """Cancel the turns of an episode that the engine still samples."""
        for ticket in seat.open_turns:
            self.agent.engine.cancel(ticket)
            del self.tickets[ticket]
        seat.open_turns.clear()
