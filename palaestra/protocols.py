"""The two interfaces of the rollout loop: an Arena plays episodes and an Engine samples turns.

Both take work without waiting (`send`, `submit`) and report later (`recv`, `poll`). Neither knows the other:
an Arena exchanges text, an Engine token ids or text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

from palaestra.episode import Ending, Event, Message, Start


class AgentTurn(str):
    """The text of a turn, with the dialogue that it answers and its numbers of tokens.

    A plain text answers the turn that was asked for first.
    """

    __slots__ = ("dialogue", "tokens")
    dialogue: int
    tokens: tuple[int, int] | None
    """Numbers of tokens that were read and sampled; None for an agent without tokens."""

    def __new__(cls, text: str, dialogue: int = 0, tokens: tuple[int, int] | None = None) -> Self:
        self = super().__new__(cls, text)
        self.dialogue, self.tokens = dialogue, tokens
        return self

    def __reduce__(self) -> tuple[type[Self], tuple[str, int, tuple[int, int] | None]]:
        return type(self), (str(self), self.dialogue, self.tokens)


class TooLong(AgentTurn):
    """Sent instead of a turn where an event is `refusable` and its messages do not fit; the text says how many do."""

    __slots__ = ()


@runtime_checkable
class Arena(Protocol):
    """Plays up to `slots` episodes at once. `recv` returns every event, endings too."""

    @property
    def slots(self) -> int:
        """Number of episodes that can run at once."""

    @property
    def task_count(self) -> int:
        """Number of tasks that `Start.task` may index."""

    @property
    def ordered(self) -> bool:
        """True if `recv` waits for all outstanding events and returns them in slot order, so that runs repeat."""

    def begin(self, slot: int, start: Start) -> None:
        """Open an episode in a slot. An episode that still runs there is discarded without a reward."""

    def send(self, actions: Mapping[int, str]) -> None:
        """Send the agent's next turn to each of these slots: a text, an `AgentTurn`, or a `TooLong`.

        An arena may have an attribute `parallel`. Where it is True, the method `more()` returns the events of further
        turns that an episode asks for while its first one is not answered. Each is answered by a `send` of its own.
        """

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """Return new events: at least `min_ready`, unless the timeout (seconds) passes or fewer are outstanding."""

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """End an episode from outside (its tokens ran out); `text` is the part of its last turn that was sampled."""

    def close(self) -> None:
        """Discard running episodes and release all resources."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one turn. It holds everything that an engine needs, so an engine works without any cache."""

    row: int
    """Id of the token row, by which an engine may find its cache."""
    start: Start
    turn: int
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    ids: Sequence[int]
    """All tokens of the row so far; empty for agents without tokens."""
    max_tokens: int
    temperature: float = 1.0
    """Sampling temperature; 0 takes the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of likeliest tokens to sample from; 0 means no limit."""
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """An engine's answer to a request: sampled ids with their log-probabilities, or text."""

    ticket: int
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    versions: Sequence[int] = ()
    """Version of the weights that chose each id: weights may be updated in the middle of a turn."""
    text: str | None = None
    """The turn of an agent that has no tokens; None where `ids` hold the turn."""
    cut: bool = False
    """True when `max_tokens` came before the end of the turn."""
    fault: str = ""
    """Reason why there is no answer (a lost server, say), empty if there is one. The episode then ends BROKEN."""


@runtime_checkable
class Engine(Protocol):
    """The source of an agent's turns: a model, a script, a person or an endpoint."""

    @property
    def sampled(self) -> int:
        """Number of tokens sampled so far, those of cancelled requests too; 0 for agents without tokens."""

    def submit(self, request: Request) -> int:
        """Request a turn and return the ticket (id) of the request."""

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Return finished answers. A built-in engine decodes one step; a server is awaited for at most `timeout` s."""

    def cancel(self, ticket: int) -> None:
        """Cancel a request; it will not be answered."""

    def close(self) -> None:
        """Release all resources."""


PauseMode = Literal["abort", "wait", "keep"]
"""How a pause treats running turns: `abort` starts them again after the pause, `wait` lets them end before it, `keep`
continues them after it with the weights of that time."""


@runtime_checkable
class TrainedEngine(Engine, Protocol):
    """An engine that answers in token ids, from weights that a trainer changes.

    It may share those weights with the trainer, hold a copy, or be on another machine. No request is lost silently:
    a turn is answered, or `Completion.fault` holds the reason why not.
    """

    @property
    def version(self) -> int:
        """Version of the weights that the engine samples with."""

    @property
    def shares_weights(self) -> bool:
        """True if the engine samples from the trainer's own tensors. Then do not poll it while they change."""

    @property
    def shares_memory(self) -> bool:
        """True if the engine uses memory that the learner needs. It is then released while the learner learns."""

    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Sample with these weights from now on. `tensors` holds all of them, by the names of the trainer's model."""

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stop sampling until `resume`. Requests are still accepted, and finished answers still returned."""

    def resume(self) -> None:
        """End a pause: sampling continues."""

    def release(self) -> None:
        """Free the memory that only sampling needs. Running turns start again after `reclaim`."""

    def reclaim(self) -> None:
        """Allocate again the memory that `release` freed."""
