"""Where an episode stands: everything that it has changed, in one object, for each seat what it heard, said and called.

Left out: what changes it (`machine`), and copying it (`branches`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.calls import clean
from palaestra.envs.core.course import Course
from palaestra.envs.running.work import Pending, Work
from palaestra.episode import Attempt, Call, Ending, Event, Message, Start, Task
from palaestra.errors import UsageError

Seat = str | None
"""Who plays; None where there is one seat, which needs no name."""
NOTHING: Mapping[Any, Any] = {}
Events = dict[Seat, Event]
"""What happened: seats that are asked for their turn, or every seat's ending at once. Empty where others are waited
for."""


class Dialogue:
    """One seat's side of an episode."""

    __slots__ = ("answer", "busy", "calls", "heard", "left", "messages", "slot", "start", "turns")

    def __init__(self, start: Start, slot: int, messages: list[Message]) -> None:
        self.start, self.slot, self.messages = start, slot, messages
        """`slot` is the place of an arena that its events name."""
        self.calls: list[Call] = []
        self.answer: str | None = None
        self.turns = self.heard = self.left = 0
        """Turns taken; messages that it has been shown or has said itself; turns left before it must have answered,
        above 0 while it is asked."""
        self.busy = False
        """Its calls are running."""

    def hear(self, text: str, role: str = "user", **more: str) -> None:
        """A message to the agent. The start's prefix follows the first one of the user's."""
        first = role == "user" and all(message["role"] != "user" for message in self.messages)
        self.messages.append({"role": role, **more, "content": clean(text)})
        if first:
            self.messages += self.start.prefix

    def say(self, text: str) -> None:
        """A turn of the agent."""
        self.turns += 1
        self.messages.append({"role": "assistant", "content": text})
        self.heard = len(self.messages)

    def news(self) -> tuple[Message, ...]:
        """The messages that are new to the agent."""
        new = tuple(self.messages[self.heard :])
        self.heard = len(self.messages)
        return new

    def event(self, schemas: tuple[Mapping[str, Any], ...]) -> Event:
        """What it is asked with."""
        return Event(self.slot, self.start, self.news(), schemas, None, None, NOTHING)

    def unanswered(self) -> tuple[Message, ...]:
        """All that came after its last turn, whether it was new before or not."""
        if not self.turns:
            return tuple(self.messages)
        last = max(place for place, message in enumerate(self.messages) if message["role"] == "assistant")
        return tuple(self.messages[last + 1 :])

    def copied(self) -> "Dialogue":
        """One that goes on by itself. Messages and calls never change: only the lists are copied."""
        twin = Dialogue(self.start, self.slot, self.messages.copy())
        twin.calls, twin.answer, twin.turns = self.calls.copy(), self.answer, self.turns
        twin.left, twin.heard = self.left, self.heard
        return twin


class Expected(NamedTuple):
    """What a Pending of an episode is for."""

    role: str
    """start, calls, world, final, end or closing."""
    state: "State | None"
    seat: Seat = None
    items: Any = None
    """Of calls: in call order, a Call where nothing is to be run. Of a start: the toolkit's place. Of world and final:
    who declares. Of the end: the rewards and the closings."""


class State:
    """An episode, of all its seats."""

    __slots__ = (
        "broken", "closed", "course", "endings", "failure", "final", "out", "owners", "play", "problem", "returned",
        "seats", "seed", "stopping",
    )  # fmt: skip

    def __init__(self, problem: Task, seed: int, play: ToolEnv, seats: dict[Seat, Dialogue]) -> None:
        self.problem, self.seed, self.play, self.seats = problem, seed, play, seats
        """`play` is the author's object as this episode has it."""
        self.course: Course | None = None
        """Of a game; None for one seat."""
        self.owners: Mapping[Any, Mapping[str, Any]] = NOTHING
        """For each seat, whose method a tool of a toolkit is."""
        self.out = 0
        """Pendings that have not come back."""
        self.stopping: tuple[Ending, Seat, str, str] | None = None
        """How it was ended from outside while calls ran; it ends when they are back."""
        self.endings: Mapping[Seat, tuple[Ending, str]] | None = None
        """For each seat its ending and fault; None while the episode runs."""
        self.broken = self.closed = False
        """Whether the infrastructure failed it; whether its toolkits are closed, or on their way."""
        self.final: Mapping[str, Any] = NOTHING
        self.returned: Mapping[Any, Any] | None = None
        """What each seat's reward comes to, where the course of a game has said it."""
        self.failure: BaseException | None = None
        """What an author's reward raised; raised again once the toolkits are closed."""

    @property
    def slot(self) -> int:
        """The place of its first seat, for errors to name."""
        return next(iter(self.seats.values())).slot

    @property
    def fault(self) -> str:
        """What broke it."""
        return "" if self.endings is None else next(iter(self.endings.values()))[1]

    def wait(self, works: Sequence[Work], role: str, seat: Seat = None, items: Any = None) -> Pending:
        """Something has to be done before the episode goes on."""
        self.out += 1
        return Pending(works, Expected(role, self, seat, items))

    def break_off(self, fault: str) -> None:
        """The infrastructure failed: a game breaks as a whole, so that all of it can be played again."""
        self.endings, self.broken = dict.fromkeys(self.seats, (Ending.BROKEN, fault)), True

    def attempt(self, seat: Seat) -> Attempt:
        """What has happened in a seat so far. A thread that hangs in a tool may hold the lists: they are copied."""
        one = self.seats[seat]
        worlds = () if self.course is None else tuple(self.course.worlds)
        messages = one.start.own(one.messages)
        return Attempt(self.problem, messages, one.answer, tuple(one.calls), one.turns, self.final, seat, worlds)


def episode_of(author: ToolEnv, problem: Task, seed: int) -> ToolEnv:
    """A shallow copy of an author's object for one episode."""
    play: ToolEnv = object.__new__(type(author))
    play.__dict__.update(author.__dict__)
    play.problem, play._seed = problem, seed
    return play


def not_open(state: State | None, verb: str) -> UsageError:
    """What to say where no episode runs."""
    if state is None or state.endings is None:
        return UsageError(f"{verb} before an episode has begun; call reset (or begin) first")
    ending = next(iter(state.endings.values()))[0]
    return UsageError(f"{verb} on an episode that has ended ({ending}); call reset (or begin) first")
