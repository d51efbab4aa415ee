"""The running episode of one slot of `play`: its dialogues, whose turn it is, and the points at which it may branch."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.agents.conversation import Conversation
from palaestra.episode import Ending, Episode, Event, Start
from palaestra.errors import UsageError
from palaestra.protocols import AgentTurn, Arena, Completion


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """An episode before one of its turns: what a branch of it begins with. It may be used any number of times."""

    snapshot: Any
    """Snapshot of the environment, after the results of the turn before."""
    conversation: Conversation
    """Messages and tokens before these results."""
    tools: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class RunningEpisode:
    """The running episode of one slot. A branch begins with the dialogue and the turns of its point."""

    start: Start
    retried: bool = False
    began: float = field(default_factory=time.monotonic)
    turn: int = 0
    dialogues: dict[int, Conversation] = field(default_factory=dict)
    """Conversations in which the agent has spoken, by the number of the dialogue; the one with the latest turn last."""
    open_turns: dict[int, tuple[int, Conversation]] = field(default_factory=dict)
    """Dialogues of the turns that the engine samples, by ticket; empty while the arena has the turn."""
    refused: tuple[int, Conversation] | None = None
    """Dialogue of the latest request, and its number, if the environment asked for a turn that did not fit."""
    opening: Conversation | None = None
    """The first conversation: the one that is left if the agent has not spoken."""
    tools: dict[int, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """Tools with which each dialogue began."""
    fault: str = ""
    """Reason why the engine could not answer, or ""."""
    branch_points: dict[int, BranchPoint] = field(default_factory=dict)
    """Points of this episode, without those of its parent, by the index of the next turn."""

    def __post_init__(self) -> None:
        branch = self.start.branch
        if branch is not None and branch.point is not None:
            self.turn, self.tools[0] = branch.turn, branch.point.tools
            self.dialogues[0] = branch.point.conversation.copied()

    def save_branch_point(self, arena: Arena, event: Event) -> None:
        """Save the point before the next turn, if the episode belongs to a tree and has had a turn of its own."""
        branch = self.start.branch
        if branch is None or self.turn <= branch.turn:
            return
        if not hasattr(arena, "snapshot"):
            raise UsageError("this arena takes no snapshots, which branches begin with; play in one process")
        conversation = self.dialogues[event.dialogue].copied()
        self.branch_points[self.turn] = BranchPoint(
            arena.snapshot(event.slot), conversation, self.tools[event.dialogue]
        )

    def is_stale(self, event: Event) -> bool:
        """Return whether an event is of an earlier episode: the engine has the turn that it asks for."""
        numbers = [dialogue for dialogue, _ in self.open_turns.values()]
        return bool(numbers) and (event.ending is not None or event.dialogue in numbers)

    def add_response(self, completion: Completion) -> AgentTurn:
        """Append what the engine sampled to the conversation that it was asked for, and return its text.

        For a fault, nothing is appended, and the text is empty.
        """
        assert completion.ticket in self.open_turns, "an engine answered a request that was never made"
        dialogue, conversation = self.open_turns.pop(completion.ticket)
        self.refused, self.fault = None, completion.fault
        if completion.fault:
            return AgentTurn("", dialogue)
        self.dialogues.pop(dialogue, None)
        self.dialogues[dialogue] = conversation
        if completion.text is not None:
            conversation.add_text(completion.text)
            return AgentTurn(completion.text, dialogue)
        prompt_tokens = len(conversation.ids)
        text = conversation.add_sampled(completion.ids, completion.logprobs, completion.versions)
        return AgentTurn(text, dialogue, (prompt_tokens, len(completion.ids)))

    def ended(self, event: Event) -> Episode:
        """Return the ended episode. It is BROKEN if its reward or a part of the reward is not a finite number."""
        assert event.attempt is not None and event.ending is not None, "an arena's ending carries the attempt"
        ending, reward, parts, fault = event.ending, event.reward, event.parts, self.fault or event.fault
        if not all(math.isfinite(value) for value in (reward or 0.0, *parts.values())):
            fault = f"its reward is {reward}, its parts are {dict(parts)}: they must be finite numbers"
            ending, reward, parts = Ending.BROKEN, None, {}
        if self.refused is not None and ending is Ending.LENGTH_LIMIT:
            number, conversation = self.refused  # A further dialogue that does not fit leaves no row.
            if self.dialogues.pop(number, None) is not None or not self.dialogues:
                self.dialogues[number] = conversation
        spoken = [*self.dialogues.values()] or [*filter(None, [self.opening])]
        branch = self.start.branch
        return Episode(
            start=self.start if branch is None else replace(self.start, branch=replace(branch, point=None)),
            attempt=event.attempt,
            rows=tuple(row for conversation in spoken for row in conversation.rows()),
            ending=ending,
            reward=reward,
            parts=parts,
            fault=fault,
            tools=self.tools.get(min(self.dialogues, default=0), ()),
            seconds=time.monotonic() - self.began,
            branch_points=self.branch_points,
        )
