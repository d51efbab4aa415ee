"""The nouns that cross rooms: what a problem is, what happened, and the record of it.

Plain frozen data, of two kinds (`palaestra.frozen`); standard library and numpy only. Left out on purpose: advantages
(they belong to a group, not to an episode), chat templates and tokenizers (`agents.chat`), and how a reward is computed
(`envs`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.frozen import statically_frozen

Message = dict[str, Any]
"""A chat message in the OpenAI form: `{"role": ..., "content": ...}`."""


class Ending(StrEnum):
    """Why an episode is over."""

    ANSWERED = "answered"
    """The agent gave its answer: Gymnasium's `terminated`."""
    TURN_LIMIT = "turn_limit"
    """The turns ran out before an answer: `truncated`."""
    LENGTH_LIMIT = "length_limit"
    """The tokens ran out; a cut-off sentence is never taken for an answer: `truncated`."""
    BROKEN = "broken"
    """The infrastructure failed: `truncated`, no reward, never trained on."""


class Status(StrEnum):
    """How a call went."""

    OK = "ok"
    BAD_CALL = "bad_call"
    """Malformed, unknown tool or wrong arguments: nothing was run."""
    TOOL_ERROR = "tool_error"
    """The tool ran and refused or failed; its message is in `Call.text`."""
    BROKEN = "broken"
    """The infrastructure under the tool failed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `data` is the world behind it, for tools and rewards; the agent sees `prompt` alone."""

    prompt: str
    answer: Any = None
    id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@statically_frozen
class Call:
    """What the agent asked for and its outcome. `text` is what the agent was told."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    status: Status
    seconds: float = field(default=0.0, compare=False)
    written: Mapping[str, Any] | None = None
    """What the agent wrote, where it differs from `arguments`: values before their conversion, without defaults."""
    answer: str | None = None
    """The episode's answer, where this call ended it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a reward sees: everything that happened, nothing that can still change."""

    task: Task
    messages: tuple[Message, ...]
    """Of this attempt alone: what `Start.prefix` put before it, such as an earlier attempt, is not among them."""
    answer: str | None
    """The agent's answer, without its thinking; None when the episode ended without one."""
    calls: tuple[Call, ...]
    turns: int
    final: Mapping[str, Any] = field(default_factory=dict)
    """What the environment and its toolkits declared of their state when the episode ended."""
    seat: str | None = None
    """Whose attempt it is, in a game."""
    worlds: tuple[Mapping[str, Any], ...] = ()
    """The same as `final`, after each round of a game whose toolkits declare any."""


@dataclass(frozen=True, slots=True)
class Start:
    """What opens an episode. `seed` is never used twice in a run, so no two episodes share their noise."""

    task: int
    """Index into the environment's task set: it decides the problem and its world."""
    seed: int
    """Decides the environment's own randomness, and with the task the agent's sampling noise."""
    group: int = 0
    """Equal for episodes whose rewards are compared."""
    seat: str | None = None
    """Which player, in a game of several; None where there is one."""
    prefix: tuple[Message, ...] = ()
    """Messages placed after the task's prompt (an earlier attempt and its critique, say): context, never trained on."""
    env: str = ""
    """Id of the environment, where several are played at once."""
    greedy: bool = False
    """Whether the likeliest tokens are taken: what others of the group are compared with (ReMax)."""

    @property
    def key(self) -> tuple[str, int, int, str | None]:
        """What tells an episode from every other of a run. A Start from another process is a copy: compare this."""
        return self.env, self.task, self.seed, self.seat

    def as_seen(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages of an attempt as its agent saw them: with the prefix after the first one of the user's."""
        at = _prompted(messages) if self.prefix else 0
        return (*messages[:at], *self.prefix, *messages[at:]) if at else tuple(messages)

    def own(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Of messages as an agent saw them, those of the attempt alone: without the prefix."""
        at = _prompted(messages) if self.prefix else 0
        return (*messages[:at], *messages[at + len(self.prefix) :]) if at else tuple(messages)


def _prompted(messages: Sequence[Message]) -> int:
    """Where the first message of the user's ends; 0 where there is none yet."""
    return next((place for place, one in enumerate(messages, 1) if one["role"] == "user"), 0)


@statically_frozen
class Event:
    """What a slot of an arena reports: messages that are new to the agent, or how its episode ended."""

    slot: int
    start: Start
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the tools the agent may call now, in the OpenAI form."""
    ending: Ending | None = None
    reward: float | None = None
    """The weighted sum of `parts`; None while the episode runs, and for BROKEN."""
    parts: Mapping[str, float] = field(default_factory=dict)
    attempt: Attempt | None = None
    """Set when the episode has ended."""
    fault: str = ""
    """What broke, for BROKEN; for a seat whose game another seat cut short, which one did."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenRow:
    """The tokens of an episode as the engine sampled them: the only truth about tokens.

    One row an episode; more only where a chat template rewrites history, so that a later turn
    does not continue the row before it.
    """

    ids: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    """True where the agent chose the token, False for prompts and tool results."""
    logprobs: NDArray[np.float32]
    """Log-probability under the sampling distribution; 0 where not sampled, and for scripts."""
    versions: NDArray[np.int32]
    """Version of the weights that chose the token; -1 where not sampled."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Episode:
    """The record of one attempt."""

    start: Start
    attempt: Attempt
    rows: tuple[TokenRow, ...]
    """Empty for agents that have no tokens: scripts, people, endpoints."""
    ending: Ending
    reward: float | None
    """None for BROKEN only."""
    parts: Mapping[str, float]
    fault: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the tools that the agent was offered when the episode opened."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time from `begin` to the ending."""

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the agent chose."""
        return sum(int(row.sampled.sum()) for row in self.rows)

    @property
    def versions(self) -> tuple[int, int] | None:
        """The oldest and the newest weights that chose a token, or None without tokens."""
        chosen = [row.versions[row.sampled] for row in self.rows if row.sampled.any()]
        if not chosen:
            return None
        return min(int(part.min()) for part in chosen), max(int(part.max()) for part in chosen)
