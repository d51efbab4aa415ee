"""The running episode of one slot of `play`: its dialogues, whose turn it is, and the points at which it may branch."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.agents.conversation import Conversation
from palaestra.episode import Ending, Episode, Event, Start
from palaestra.errors import UsageError
from palaestra.protocols import Arena


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
    """Conversations by the number of the dialogue; the one that was asked for the latest turn stands last."""
    ticket: int | None = None
    """Ticket of the turn at the engine; None while the arena has the turn."""
    tools: tuple[Mapping[str, Any], ...] = ()
    fault: str = ""
    """Reason why the engine could not answer, or ""."""
    branch_points: dict[int, BranchPoint] = field(default_factory=dict)
    """Points of this episode, without those of its parent, by the index of the next turn."""

    def __post_init__(self) -> None:
        branch = self.start.branch
        if branch is not None and branch.point is not None:
            self.turn, self.tools = branch.turn, branch.point.tools
            self.dialogues[0] = branch.point.conversation.copied()

    def save_branch_point(self, arena: Arena, event: Event) -> None:
        """Save the point before the next turn, if the episode belongs to a tree and has had a turn of its own."""
        branch = self.start.branch
        if branch is None or self.turn <= branch.turn:
            return
        if not hasattr(arena, "snapshot"):
            raise UsageError("this arena takes no snapshots, which branches begin with; play in one process")
        conversation = self.dialogues[event.dialogue].copied()
        self.branch_points[self.turn] = BranchPoint(arena.snapshot(event.slot), conversation, self.tools)

    def ended(self, event: Event) -> Episode:
        """Return the ended episode. It is BROKEN if its reward or a part of the reward is not a finite number."""
        assert event.attempt is not None and event.ending is not None, "an arena's ending carries the attempt"
        ending, reward, parts, fault = event.ending, event.reward, event.parts, self.fault or event.fault
        if not all(math.isfinite(value) for value in (reward or 0.0, *parts.values())):
            fault = f"its reward is {reward}, its parts are {dict(parts)}: they must be finite numbers"
            ending, reward, parts = Ending.BROKEN, None, {}
        branch = self.start.branch
        return Episode(
            start=self.start if branch is None else replace(self.start, branch=replace(branch, point=None)),
            attempt=event.attempt,
            rows=tuple(row for conversation in self.dialogues.values() for row in conversation.rows()),
            ending=ending,
            reward=reward,
            parts=parts,
            fault=fault,
            tools=self.tools,
            seconds=time.monotonic() - self.began,
            branch_points=self.branch_points,
        )
