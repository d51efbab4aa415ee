"""HarnessMachine: a machine whose world between two turns is the author's harness.

    FREE -open-> [run: news] -> ASKED -act-> [run: news] -> ASKED ...      [run: news] waits for the next request
                     |            more: further requests, while the first are not answered
                     |  the harness has returned or raised, turn limit, deadline
                     v
                 as in Machine: [final state] -> [verdicts] -> OVER

Whatever ends the episode, the harness is stopped and its address refused. Left out: dialogues (`world`), HTTP
(`server`), and running the harness (`program`).
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from palaestra import formats
from palaestra.authorship import foreign_line
from palaestra.causes import one_line, without_varying
from palaestra.envs.core import ending as outcome
from palaestra.envs.core.calls import clip
from palaestra.envs.core.kits import is_permanent
from palaestra.envs.core.machine import Machine, MachineReply
from palaestra.envs.core.spec import Spec
from palaestra.envs.core.state import EpisodeState, Seat, not_open
from palaestra.envs.harness.program import answer_of, start
from palaestra.envs.harness.server import server_here
from palaestra.envs.harness.world import Over, Turn, World
from palaestra.envs.running.work import Pending, Work, WorkMode
from palaestra.episode import Ending, Event
from palaestra.errors import Broken, UsageError
from palaestra.protocols import TooLong
from palaestra.shortening import visible

log = logging.getLogger("palaestra.envs")
_LONGEST_ERROR = 2000
"""Most characters of a harness's error that an episode keeps."""
_MOST_WARNINGS = 200
_warned: set[tuple[str, str]] = set()
"""Causes of which a warning was logged, each with the name of its environment."""
_LISTEN_SECONDS = 10.0
"""Seconds that `listen` waits for a request: a harness that runs again sends its parallel ones within moments."""


class HarnessMachine(Machine):
    """Plays the episodes of one Harness, one at a time."""

    __slots__ = ("world",)

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.inline = False
        self.world: World | None = None
        """World of the running episode; None if none runs."""

    def act(self, seat: Seat, text: str) -> MachineReply:
        """Take a turn, and wait for the next request of the harness."""
        state = self.state
        if state is None or state.endings is not None or self.world is None:
            raise not_open(state, "step")
        if not isinstance(text, str):
            raise UsageError(f"an action is {type(text).__name__}; expected str, the agent's whole turn")
        dialogue = state.seats[None]
        if seat is not None or not dialogue.left:
            raise UsageError(f"{self.spec.name}: it is not the turn of {seat!r}")
        if isinstance(text, TooLong):
            self.world.refuse(text)
        else:
            self.world.answer(text)
            dialogue.turns += 1
        self._show(state, self.world)
        return {} if dialogue.left else self._listen(state, self.world)

    def more(self) -> list[Event]:
        """Return the events of further turns that the harness asks for, while the first ones are not answered."""
        state, world, events = self.state, self.world, list[Event]()
        if state is None or state.endings is not None or world is None or not world.open_talks:
            return events
        while self._used(state, world) < self.spec.max_turns and (turn := world.waiting()) is not None:
            events.append(self._asked(state, world, turn))
        return events

    def listen(self) -> MachineReply:
        """Wait for one request more, while others are not answered; if none comes soon, the episode ends BROKEN."""
        if self.state is None or self.world is None:
            raise not_open(self.state, "listen")
        return self._listen(self.state, self.world, _LISTEN_SECONDS)

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> MachineReply:
        """End the episode from outside; `text` is a turn that was cut, of the dialogue that it names."""
        state, world = self.state, self.world
        if text and state is not None and world is not None and world.open_talks:
            world.answer(text, is_cut=True)
            state.seats[None].turns += 1
            text = ""
        return super().stop(ending, culprit, text, fault)

    def resume(self, pending: Pending) -> MachineReply:
        """Continue the episode after the harness has asked, or has ended."""
        expected, state = pending.about, self.state
        if expected.role != "asked" or state is None or expected.state is not state:
            return super().resume(pending)
        return self._go_on(state, pending)

    def _go_on(self, state: EpisodeState, pending: Pending) -> MachineReply:
        """Continue the episode with the next request of the harness, or with its end."""
        state.out -= 1
        world = self.world
        if state.endings is not None or world is None:
            return {}
        if (late := pending.late) is not None:
            seconds = late.conditions.seconds
            return self._break(state, f"{state.where}: its harness has neither asked nor returned in {seconds:g} s")
        if state.stopping is not None:
            return self.stop(*state.stopping)
        try:
            news = pending.works[0].outcome()
        except (Broken, OSError, asyncio.CancelledError) as error:
            return self._break(state, f"{state.where}: {type(error).__name__}: {error}")
        if isinstance(news, Over):
            return self._returned(state, world, news)
        if self._used(state, world) >= self.spec.max_turns:
            return self._unanswered(state, world)
        return {None: self._asked(state, world, news)}

    def discard(self) -> None:
        """Drop the running episode without a reward."""
        self._leave()
        super().discard()

    close = discard

    def _first_events(self, state: EpisodeState) -> MachineReply:
        dialogue = state.seats[None]
        if dialogue.start.prefix:
            raise UsageError(
                f"{self.spec.name} is a harness, which writes the model's messages itself: a start with a prefix (a "
                "second attempt, say) cannot be played"
            )
        dialogue.messages = []
        self.world = World(formats.get(self.spec.author.format), self.spec.max_turns)
        return self._listen(state, self.world)

    def _listen(self, state: EpisodeState, world: World, seconds: float = float("inf")) -> MachineReply:
        """Wait for the next request of the harness, or its end; the first time, start it."""
        news = partial(world.news, partial(_start, state))
        conditions = self.spec.conditions["run", WorkMode.ASYNC]
        if seconds < conditions.seconds:
            conditions = replace(conditions, seconds=seconds)
        return state.wait([Work("run", news, conditions)], "asked")

    @staticmethod
    def _used(state: EpisodeState, world: World) -> int:
        """Return the number of requests that count for the limit of turns."""
        return state.seats[None].turns + len(world.open_talks) + world.refused

    def _asked(self, state: EpisodeState, world: World, turn: Turn) -> Event:
        """Return the event that asks for a turn."""
        world.take(turn)
        _warn_of(turn.request.unfollowed, self.spec.name)
        dialogue, request = state.seats[None], turn.request
        self._show(state, world)
        dialogue.schemas = request.tools
        return Event(
            dialogue.slot, dialogue.start, tuple(turn.new), request.tools,
            dialogue=turn.number, max_tokens=request.max_tokens, temperature=request.temperature, refusable=True,
        )  # fmt: skip

    def _show(self, state: EpisodeState, world: World) -> None:
        """Put what was said so far into the state, for the attempt."""
        dialogue = state.seats[None]
        dialogue.messages, dialogue.dialogues, dialogue.calls = world.messages, world.openings, world.calls
        dialogue.refused, dialogue.unfollowed = world.refused, world.unfollowed
        dialogue.delivered, dialogue.left = len(dialogue.messages), len(world.open_talks)

    def _returned(self, state: EpisodeState, world: World, over: Over) -> MachineReply:
        """End the episode after its harness has ended: a crash after its first request may be the agent's doing."""
        error = over.error
        if error is not None and is_permanent(error):
            self.discard()
            raise error
        if error is not None:
            raised = _described(error)
            if not world.asks or isinstance(error, Broken):
                return self._break(state, f"{state.where}: its harness raised {raised}")
            state.seats[None].raised = raised
            _warn_of_error(raised, self.spec.name)
            return self._unanswered(state, world)
        if not world.asks:
            return self._break(
                state,
                f"{state.where}: its harness returned without having asked the model once; was its client made with "
                "the base_url that `run` was given?",
            )
        answer = answer_of(self.spec.owner, over)
        if answer is None or world.too_long is not None:
            return self._unanswered(state, world)
        state.seats[None].answer = answer
        return self._end(state, outcome.ANSWERED)

    def _unanswered(self, state: EpisodeState, world: World) -> MachineReply:
        """End the episode without an answer: at LENGTH_LIMIT if its latest request was too long, else at TURN_LIMIT."""
        if world.too_long is None:
            return self._end(state, outcome.UNANSWERED)
        world.take(world.too_long, stays=True)
        return self._end(state, {None: (Ending.LENGTH_LIMIT, "")})

    def _end(self, state: EpisodeState, endings: Mapping[Seat, tuple[Ending, str]]) -> MachineReply:
        self._leave(state)
        return super()._end(state, endings)

    def _break(self, state: EpisodeState, fault: str, in_use: bool = False) -> MachineReply:
        self._leave(state)
        return super()._break(state, fault, in_use)

    def _leave(self, state: EpisodeState | None = None) -> None:
        """Stop the harness of the episode, and refuse its requests from now on. What was told stays in the state."""
        world, self.world = self.world, None
        if world is None:
            return
        if state is not None:
            world.drop_unanswered()
            self._show(state, world)
        world.close()


@cache
def _warn_of(wishes: tuple[str, ...], name: str) -> None:
    """Log wishes that are not followed, once for each environment."""
    if wishes:
        log.warning("%s", f"{name}: its requests wish {', '.join(wishes)}, which this model does not follow")


def _described(error: BaseException) -> str:
    """Return an error of a harness, and its author's line."""
    line = foreign_line(error)
    place = "" if line is None else f" ({Path(line.file).name}, line {line.number})"
    return clip(f"{type(error).__name__}: {error}", _LONGEST_ERROR) + place


def _warn_of_error(raised: str, name: str) -> None:
    """Log an error of a harness, the first time that it occurs: summaries count the others."""
    cause = name, without_varying(one_line(raised))
    if cause not in _warned and len(_warned) < _MOST_WARNINGS:
        _warned.add(cause)
        log.warning("%s", f"{name}: its harness raised {visible(raised)}; each episode keeps its error")


async def _start(state: EpisodeState, world: World) -> None:
    """Open the address of an episode, and start its harness."""
    server = await server_here()
    model = server.open(world)
    dialogue = state.seats[None]
    stop = start(state.play, state.problem, model, world, state.name, dialogue.slot)  # type: ignore[arg-type]

    def leave() -> None:
        server.close(world)
        stop()

    world.leave = leave
