"""The data types that all packages share: a task, what happened in its episode, and the record of it.

The classes hold plain data that does not change: some are protected by Python, others only by the type checker
(`palaestra.frozen`). They need only the standard library and numpy. Left out on purpose: advantages (they belong to a
group, not to an episode), chat templates and tokenizers (`agents.chat`), and how a reward is computed (`envs`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.frozen import statically_frozen

Message = dict[str, Any]
"""A chat message in the OpenAI form: `{"role": ..., "content": ...}`."""


def is_turn(message: Message) -> bool:
    """Return whether a message is a turn of this attempt's agent: an assistant's message with `weight: 0` is context.

    Such a message (OpenAI's files of examples mark them so) repeats an earlier turn, or is of another author.
    """
    return message["role"] == "assistant" and message.get("weight") != 0


class Ending(StrEnum):
    """Reason for which an episode ended."""

    ANSWERED = "answered"
    """The agent gave its answer: Gymnasium's `terminated`."""
    TURN_LIMIT = "turn_limit"
    """The turns ran out before an answer: `truncated`."""
    LENGTH_LIMIT = "length_limit"
    """The tokens ran out; a cut-off sentence is never taken for an answer: `truncated`."""
    BROKEN = "broken"
    """The infrastructure failed: `truncated`, no reward, never trained on."""


class Status(StrEnum):
    """Outcome of a tool call."""

    OK = "ok"
    BAD_CALL = "bad_call"
    """The call was malformed, named an unknown tool or had wrong arguments: nothing was run."""
    TOOL_ERROR = "tool_error"
    """The tool ran and refused or failed; its message is in `Call.text`."""
    BROKEN = "broken"
    """The infrastructure under the tool failed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `data` is its hidden state, for tools and rewards; the agent sees only `prompt`."""

    prompt: str
    answer: Any = None
    id: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@statically_frozen
class Call:
    """A tool call and its outcome. `text` is what the agent was shown."""

    name: str
    arguments: Mapping[str, Any]
    text: str
    status: Status
    seconds: float = field(default=0.0, compare=False)
    written: Mapping[str, Any] | None = None
    """Arguments as the agent wrote them: before conversion, without defaults. None where they equal `arguments`."""
    answer: str | None = None
    """The episode's answer, where this call ended it; None otherwise."""
    result: str | None = None
    """Whole result of the tool, for rewards, where the agent was shown only a part of it. The environment's
    `max_kept_chars` cuts it. None where `text` is the whole result."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The place at which a dialogue of an attempt begins, and the tools that it offered."""

    begin: int
    """Index of its first message in `Attempt.messages`; it ends where the next one begins."""
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The finished attempt that a reward reads. It holds everything that happened, and does not change any more."""

    task: Task
    messages: tuple[Message, ...]
    """Messages of this attempt alone: those of `Start.prefix`, such as an earlier attempt, are not among them."""
    answer: str | None
    """The agent's answer, without its thinking; None when the episode ended without one."""
    calls: tuple[Call, ...]
    turns: int
    final: Mapping[str, Any] = field(default_factory=dict)
    """Final state that the environment and its toolkits declared when the episode ended."""
    seat: str | None = None
    """Seat of the attempt in a game; None for an environment with one seat."""
    worlds: tuple[Mapping[str, Any], ...] = ()
    """The state that `final` holds, after each round of a game whose toolkits declare any."""
    dialogues: tuple[Opening, ...] = ()
    """Dialogues of the attempt, in the order in which they were opened; empty where all messages are one dialogue. In
    `messages` each is whole, and the dialogue with the latest turn is the last."""
    refused: int = 0
    """Number of a harness's requests that were refused because their messages did not fit into a token row."""
    unfollowed: int = 0
    """Number of a harness's requests with a wish that was not followed, such as `top_p`."""
    raised: str = field(default="", compare=False)
    """Error that a harness raised, and its author's line, where that ended the episode without an answer."""


@dataclass(frozen=True, slots=True)
class Branch:
    """The place of an episode in a tree of episodes, which share the beginning of the tree's trunk.

    The record of a branch is a whole episode: it repeats the turns and tokens that it shares.
    """

    number: int = 0
    """Number of the episode in its tree; 0 is the trunk."""
    parent: int = 0
    """Number of the episode whose beginning it shares."""
    turn: int = 0
    """Index of the first turn of its own. The turns before it are those of its parent."""
    point: Any = field(default=None, compare=False, repr=False)
    """Where it begins: a `BranchPoint` of its parent, which no record holds; None for the beginning of the episode."""


@dataclass(frozen=True, slots=True)
class Start:
    """The values that open an episode. No two episodes of a run have the same `seed`, so they share no noise."""

    task: int
    """Index into the environment's task set: it decides the problem and its world."""
    seed: int
    """Decides the environment's own randomness, and with the task the agent's sampling noise."""
    group: int = 0
    """Equal for episodes whose rewards are compared."""
    seat: str | None = None
    """Seat of the player in a game; None for an environment with one seat."""
    prefix: tuple[Message, ...] = ()
    """Messages placed after the task's prompt (an earlier attempt and its critique, say): context, never trained on."""
    env: str = ""
    """Name of the environment in a mixture; empty where the run plays one environment."""
    greedy: bool = False
    """True for greedy decoding: the other episodes of the group are compared with this one (ReMax)."""
    branch: Branch | None = None
    """Place in a tree, whose episodes have one `seed`; None for an episode of which no branches are made."""

    @property
    def key(self) -> tuple[str, int, int, str | None, int]:
        """Key that no other episode of the run has. A Start from another process is a copy, so compare keys."""
        return self.env, self.task, self.seed, self.seat, self.branch.number if self.branch else 0

    @property
    def for_engine(self) -> "Start":
        """Return the start as engines get it: each branch of a tree has a seed of its own, and so its own noise."""
        if self.branch is None or not self.branch.number:
            return self
        return replace(self, seed=self.seed + (self.branch.number << 48), branch=None)

    def as_seen(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return an attempt's messages as its agent saw them, with the prefix after the first user message."""
        at = _prompted(messages) if self.prefix else 0
        return (*messages[:at], *self.prefix, *messages[at:]) if at else tuple(messages)

    def without_prefix(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Remove the prefix from messages that an agent saw, and return the messages of the attempt alone."""
        at = _prompted(messages) if self.prefix else 0
        return (*messages[:at], *messages[at + len(self.prefix) :]) if at else tuple(messages)


def _prompted(messages: Sequence[Message]) -> int:
    """Return the index after the first user message; 0 if there is none."""
    return next((index for index, message in enumerate(messages, 1) if message["role"] == "user"), 0)


@statically_frozen
class Event:
    """A report of an arena's slot: messages that are new to the agent, or the ending of its episode."""

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
    """Description of the failure, for BROKEN; where another seat cut the game short, which seat did so."""
    dialogue: int = 0
    """Number of the dialogue that goes on; a new number opens a dialogue, and `messages` is all of it."""
    max_tokens: int | None = None
    """Maximum tokens that the environment wishes for this turn; None without a wish."""
    temperature: float | None = None
    """Sampling temperature that the environment wishes for this turn; None without a wish."""
    refusable: bool = False
    """True if the episode goes on where these messages do not fit into a token row: the turn is then a `TooLong`."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenRow:
    """The tokens of an episode, exactly as the engine sampled them. This row, not the text, defines them.

    A dialogue has one row. It has several only if the chat template rewrites earlier messages, so that a later turn
    does not continue the row before it. The rows of an episode are in the order of its dialogues in the messages.
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
    """Token rows; empty for agents that have no tokens: scripts, people, endpoints."""
    ending: Ending
    reward: float | None
    """Weighted sum of `parts`; None for BROKEN only."""
    parts: Mapping[str, float]
    fault: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Schemas of the tools that the agent was offered when the episode opened."""
    seconds: float = field(default=0.0, compare=False)
    """Wall time from `begin` to the ending."""
    branch_points: Mapping[int, Any] = field(default_factory=dict, compare=False, repr=False)
    """Points at which branches may begin, by the index of their first turn. No record holds them."""

    @property
    def dialogues(self) -> list[tuple[tuple[Message, ...], tuple[Mapping[str, Any], ...]]]:
        """The messages and the tools of each dialogue, in the order of the messages; one, where the attempt has one."""
        attempt = self.attempt
        if not attempt.dialogues:
            return [(attempt.messages, self.tools)]
        openings = sorted(attempt.dialogues, key=lambda opening: opening.begin)
        ends = [*(opening.begin for opening in openings[1:]), len(attempt.messages)]
        return [(attempt.messages[o.begin : end], o.tools) for o, end in zip(openings, ends, strict=True)]

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the agent sampled."""
        return sum(int(row.sampled.sum()) for row in self.rows)

    @property
    def versions(self) -> tuple[int, int] | None:
        """Oldest and newest version of the weights that chose a token; None if no token was sampled."""
        chosen = [row.versions[row.sampled] for row in self.rows if row.sampled.any()]
        if not chosen:
            return None
        return min(int(part.min()) for part in chosen), max(int(part.max()) for part in chosen)
