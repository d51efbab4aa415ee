"""The two ports, symmetric, so that one loop joins them: an Arena of episodes and an Engine that answers.

Both take work without waiting (`send`, `submit`) and report later (`recv`, `poll`). Neither knows the other:
an Arena deals in text, an Engine in token ids or text.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from palaestra.episode import Ending, Event, Message, Start


@runtime_checkable
class Arena(Protocol):
    """`slots` places where episodes are played. Every answer comes through `recv`, endings too."""

    @property
    def slots(self) -> int:
        """How many episodes can run at once."""

    @property
    def task_count(self) -> int:
        """How many tasks `Start.task` may index."""

    @property
    def ordered(self) -> bool:
        """True when `recv` is a barrier: all outstanding events at once, in slot order, so that runs repeat."""

    def begin(self, slot: int, start: Start) -> None:
        """Open an episode. On a live slot the running one is discarded without a reward."""

    def send(self, actions: Mapping[int, str]) -> None:
        """Give each of these slots the agent's next turn."""

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """What has happened since, at least `min_ready` events unless the timeout passes or fewer are outstanding."""

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """Close an episode from outside (its tokens ran out); `text` is what the agent had said of its last turn."""

    def close(self) -> None:
        """Discard what runs and release everything."""


@dataclass(frozen=True, slots=True)
class Request:
    """One turn wanted of an engine. Whole, so that an engine may keep caches but never needs to."""

    row: int
    """Unique to the token row: a hint where its cache may lie."""
    start: Start
    turn: int
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]]
    ids: Sequence[int]
    """The whole row so far; empty for agents without tokens."""
    max_tokens: int
    temperature: float = 1.0
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0 for no bound."""
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """An engine's answer to a request: sampled ids with their log-probabilities, or text."""

    ticket: int
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    versions: Sequence[int] = ()
    """Of the weights that chose each id: they may be updated in the middle of a turn."""
    text: str | None = None
    """The answer of agents that have no tokens; None where `ids` speak."""
    cut: bool = False
    """True when `max_tokens` came before the end of the turn."""
    fault: str = ""
    """Why there is no answer: the engine's server is gone, say. The episode ends BROKEN; the agent is not blamed."""


@runtime_checkable
class Engine(Protocol):
    """Whatever answers: a model, a script, a person, an endpoint."""

    @property
    def sampled(self) -> int:
        """Tokens sampled so far, those of cancelled requests too; 0 for agents without tokens."""

    def submit(self, request: Request) -> int:
        """Ask for a turn; returns a ticket."""

    def poll(self, timeout: float = 0.0) -> list[Completion]:
        """Answers that are ready. A built-in engine decodes one step; a server is waited for `timeout` seconds."""

    def cancel(self, ticket: int) -> None:
        """Forget a request; it will not be answered."""

    def close(self) -> None:
        """Release everything."""


PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of turns in flight: they begin anew after the pause, they end before it, or they go on after it from
where they stood, with whatever weights there are then."""


@runtime_checkable
class TrainedEngine(Engine, Protocol):
    """An engine that answers in token ids, from weights that a trainer changes.

    It may share those weights with the trainer, hold a copy, or be on another machine. Nothing here is lost without a
    word: a turn is answered, or its Completion says in `fault` why not.
    """

    @property
    def version(self) -> int:
        """Of the weights that it answers from."""

    @property
    def shares_weights(self) -> bool:
        """True where it samples from the trainer's own tensors, and so must not be polled while they change."""

    def update_weights(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """Answer from these weights from now on. All of them are brought, by the names of the trainer's model."""

    def pause(self, mode: PauseMode = "keep") -> None:
        """Sample nothing more until `resume`; requests are still taken, and answers that are ready still given."""

    def resume(self) -> None:
        """Answer again."""

    def release(self) -> None:
        """Give back the memory that only answering needs. Turns in flight begin anew after `reclaim`."""

    def reclaim(self) -> None:
        """Take that memory again."""

    def health(self) -> str:
        """What is wrong with it, empty if nothing is. Asked before a run begins, and answered within seconds."""
