"""Interface of task samplers: they choose what to play next, and which groups form a batch.

The task of a group is a pure function of the group's number, so the state of a sampler is small. A batch takes groups
in the order of their numbers, not in the order in which they end: otherwise it would hold too many short episodes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palaestra.episode import Start
from palaestra.trainers.batch import Batch, Scored

TaskDraw = Callable[[int], tuple[str, int]]
"""Returns the environment and the task of a group, by the group's number."""


class Sampler(Protocol):
    """Source of starts. `next` is called whenever a slot is free, and `observe` for each scored episode."""

    def next(self, ahead: int = 0) -> Start | None:
        """Return the next start, or None if there is none now. `ahead` batches after the current one may be started."""

    def observe(self, scored: Scored) -> None:
        """Record a scored episode."""

    def still_needed(self, start: Start) -> bool:
        """Return whether to continue a running episode. This is called often, for every slot, so it must be fast."""

    def batch(self) -> Batch | None:
        """Return the current batch when it is complete, and go on to the next one; return None before that."""

    def state(self) -> Mapping[str, Any]:
        """Return the state with which `load` resumes from the current batch, as plain values for JSON."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned, also of another sampler with the same settings."""
