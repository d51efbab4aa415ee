"""State of an episode in one object: all that the episode has changed, with the messages and calls of each seat.

Left out: the steps that change it (`machine`), and copying it (`branches`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.calls import clean, clip_call
from palaestra.envs.core.course import Course
from palaestra.envs.running.work import Pending, Work
from palaestra.episode import Attempt, Call, Ending, Event, Message, Opening, Start, Status, Task
from palaestra.errors import UsageError

Seat = str | None
"""Name of a seat; None if there is only one seat, which needs no name."""
NOTHING: Mapping[Any, Any] = {}
Events = dict[Seat, Event]
"""Events by seat: those of the seats to move, or every seat's ending at once. Empty while other seats are awaited."""


class Dialogue:
    """Messages, calls and answer of one seat in an episode."""

    __slots__ = (
        "answer", "busy", "calls", "delivered", "dialogues", "left", "messages", "raised", "refused", "schemas", "slot",
        "start", "turns", "unfollowed",
    )  # fmt: skip

    def __init__(
        self, start: Start, slot: int, messages: list[Message], schemas: tuple[Mapping[str, Any], ...] = ()
    ) -> None:
        self.start, self.slot, self.messages, self.schemas = start, slot, messages, schemas
        """`slot` is the slot of the arena that its events name, `schemas` describe the tools of the seat."""
        self.calls: list[Call] = []
        self.answer: str | None = None
        self.dialogues: tuple[Opening, ...] = ()
        """Dialogues within the messages of a harness; empty where they are one."""
        self.refused = self.unfollowed = 0
        self.raised = ""
        self.turns = self.delivered = self.left = 0
        """Turns taken; messages that the agent has seen or written; turns left before it must have answered, above 0
        while it is to move."""
        self.busy = False
        """True while its calls run, or while the user is asked."""

    def hear(self, text: str, role: str = "user", **more: str) -> None:
        """Append a message to the agent; after the first user message, also append the prefix of the start."""
        first = role == "user" and all(message["role"] != "user" for message in self.messages)
        self.messages.append({"role": role, **more, "content": clean(text)})
        if first:
            self.messages += self.start.prefix

    def say(self, text: str) -> None:
        """Append a turn of the agent."""
        self.turns += 1
        self.messages.append({"role": "assistant", "content": text})
        self.delivered = len(self.messages)

    def record(self, calls: Sequence[Call], max_shown: int, max_kept: int) -> tuple[Call | None, Call | None]:
        """Append the results of a turn, in call order. Return the first call that broke, and the first that answered.

        The agent is shown at most `max_shown` characters of a result; `max_kept` are kept for the reward.
        """
        broken: Call | None = None
        final: Call | None = None
        for call in calls:
            if len(call.text) > max_shown or not call.text.isascii() or call.answer is not None:
                call = clip_call(call, max_shown, max_kept)
            self.calls.append(call)
            self.messages.append({"role": "tool", "name": call.name, "content": call.text})
            if call.answer is not None and final is None:
                final = call
            elif call.status is Status.BROKEN and broken is None:
                broken = call
        return broken, final

    def event(self) -> Event:
        """Return the event that asks for a turn, with the messages that the agent has not seen yet."""
        messages = self.messages
        new, self.delivered = tuple(messages[self.delivered :]), len(messages)
        return Event(self.slot, self.start, new, self.schemas, None, None, NOTHING)

    def last_event(self, *ending: Any) -> Event:
        """Return the event that ends the episode; `ending` is its ending, reward, parts, attempt and fault."""
        return Event(self.slot, self.start, tuple(self.messages[self.delivered :]), self.schemas, *ending)

    def pending_event(self) -> Event:
        """Return the event that asks for the seat's turn, with all messages since its last turn, also those already
        sent."""
        roles = [message["role"] for message in self.messages]
        last = len(roles) - roles[::-1].index("assistant") if self.turns else 0
        return Event(self.slot, self.start, tuple(self.messages[last:]), self.schemas)

    def copied(self) -> "Dialogue":
        """Return an independent copy. Messages and calls never change: only the lists are copied."""
        twin = Dialogue(self.start, self.slot, self.messages.copy(), self.schemas)
        twin.calls, twin.answer, twin.turns = self.calls.copy(), self.answer, self.turns
        twin.left, twin.delivered = self.left, self.delivered
        return twin


class Expected(NamedTuple):
    """Purpose of a Pending: the step of an episode that continues when its jobs are done."""

    role: str
    """One of start, calls, user, asked (of a harness), world, final, end and closing."""
    state: "EpisodeState | None"
    seat: Seat = None
    items: Any = None
    """For calls: in call order, a Call where nothing is to be run. For user: the text that the user hears. For start:
    the toolkit's index. For world and final: the takers. For end: the rewards and the closings."""


class EpisodeState:
    """State of an episode, with all its seats."""

    __slots__ = (
        "broken", "closed", "course", "endings", "failure", "final", "name", "out", "owners", "play", "problem",
        "returned", "seats", "seed", "stopping",
    )  # fmt: skip

    def __init__(self, name: str, problem: Task, seed: int, play: ToolEnv, seats: dict[Seat, Dialogue]) -> None:
        self.name, self.problem, self.seed, self.play, self.seats = name, problem, seed, play, seats
        """`name` is that of the environment in errors, `play` is the author's object as this episode has it."""
        self.course: Course | None = None
        """Rounds of a game; None for one seat."""
        self.owners: Mapping[Any, Mapping[str, Any]] = NOTHING
        """Toolkit of each tool, by seat."""
        self.out = 0
        """Number of Pendings that have not come back."""
        self.stopping: tuple[Ending, Seat, str, str] | None = None
        """Arguments of a stop from outside while calls ran; it happens when they are back."""
        self.endings: Mapping[Seat, tuple[Ending, str]] | None = None
        """Ending and fault of each seat; None while the episode runs."""
        self.broken = self.closed = False
        """True if the infrastructure failed; true if the toolkits are closed or closing."""
        self.final: Mapping[str, Any] = NOTHING
        self.returned: Mapping[Any, Any] | None = None
        """Reward of each seat, if the rounds of a game returned it; else None."""
        self.failure: BaseException | None = None
        """Exception of an author's reward; raised again once the toolkits are closed."""

    @property
    def where(self) -> str:
        """Text for errors: the name of the environment, and the slot of the first seat."""
        return f"{self.name} slot {next(iter(self.seats.values())).slot}"

    def wait(self, works: Sequence[Work], role: str, seat: Seat = None, items: Any = None) -> Pending:
        """Return a Pending of these jobs, which must finish before the episode continues."""
        self.out += 1
        if role in ("calls", "user"):
            self.seats[seat].busy = True
        return Pending(works, Expected(role, self, seat, items))

    def break_off(self, fault: str) -> None:
        """End the episode BROKEN for every seat, so that a game can be played again as a whole."""
        self.endings, self.broken = dict.fromkeys(self.seats, (Ending.BROKEN, fault)), True

    def pending_events(self) -> Events:
        """Return one event for each seat whose turn it is, with the messages since its last turn."""
        dialogues = {} if self.endings is not None else self.seats
        return {
            seat: dialogue.pending_event()
            for seat, dialogue in dialogues.items()
            if dialogue.left and not dialogue.busy
        }

    def broken_events(self) -> Events:
        """Return the last event, BROKEN, of every seat, after a failure of the infrastructure."""
        assert self.endings is not None
        return {
            seat: dialogue.last_event(Ending.BROKEN, None, {}, self.attempt(seat), self.endings[seat][1])
            for seat, dialogue in self.seats.items()
        }

    def attempt(self, seat: Seat) -> Attempt:
        """Return the attempt of a seat so far. Lists are copied, since a thread that hangs in a tool may hold them."""
        dialogue = self.seats[seat]
        worlds = () if self.course is None else self.course.worlds
        messages = dialogue.start.without_prefix(dialogue.messages)
        return Attempt(
            self.problem, messages, dialogue.answer, tuple(dialogue.calls), dialogue.turns, self.final, seat, worlds,
            dialogue.dialogues, dialogue.refused, dialogue.unfollowed, dialogue.raised,
        )  # fmt: skip


def episode_of(author: ToolEnv, problem: Task, seed: int) -> ToolEnv:
    """Return a shallow copy of an author's object for one episode."""
    play: ToolEnv = object.__new__(type(author))
    play.__dict__.update(author.__dict__)
    play.problem, play._seed = problem, seed
    return play


def not_open(state: EpisodeState | None, verb: str) -> UsageError:
    """Return the error for a call while no episode runs."""
    if state is None or state.endings is None:
        return UsageError(f"{verb} before an episode has begun; call reset (or begin) first")
    ending = next(iter(state.endings.values()))[0]
    return UsageError(f"{verb} on an episode that has ended ({ending}); call reset (or begin) first")
