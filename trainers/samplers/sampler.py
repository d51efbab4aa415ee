"""Interface of task samplers: they choose what to play next, and which groups form a batch.

The task of a group is a pure function of its number, and a batch takes groups in the order of their numbers, not in
the order in which they end: otherwise batches would favour short episodes. So the state of a sampler is small.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palaestra.episode import Start
from palaestra.trainers.batch import Batch, Scored

TaskDraw = Callable[[int], tuple[str, int]]
"""Returns the environment and the task of a group, by the group's number."""


class Sampler(Protocol):
    """Source of starts: called whenever a slot is free, and given each scored episode."""

    def next(self, ahead: int = 0) -> Start | None:
        """Return the next start; None if there is none now. `ahead`: how many batches after this one may be started."""

    def observe(self, scored: Scored) -> None:
        """Record a scored episode."""

    def still_needed(self, start: Start) -> bool:
        """Return whether to continue a running episode. Called for every slot in every round, so it must be cheap."""

    def batch(self) -> Batch | None:
        """Return the current batch once it is complete, and advance to the next; None before that."""

    def state(self) -> Mapping[str, Any]:
        """Return the state that `load` needs to resume from the current batch, as plain JSON."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state that another sampler returned."""
