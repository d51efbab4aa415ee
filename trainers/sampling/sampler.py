"""The third port, beside `palaestra.protocols`: what is played next, and which groups make a batch.

Every draw is a pure function of the group's number, and a batch takes groups in the order of their numbers, not of
their answers: else quick episodes would get in and slow ones be replaced. So a sampler's state is little, and plain.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from palaestra.episode import Start
from palaestra.trainers.batch import Batch, Scored

Draw = Callable[[int], tuple[str, int]]
"""The environment and the task of the group of that number."""


class Sampler(Protocol):
    """Asked for a start whenever a slot is free, and told of each episode that has ended."""

    def next(self, ahead: int = 0) -> Start | None:
        """What to play next; None for nothing now. It may begin groups of up to `ahead` batches beyond this one."""

    def heard(self, scored: Scored) -> None:
        """An episode has ended and been scored."""

    def wanted(self, start: Start) -> bool:
        """Whether to go on with a running episode. Asked for every slot in every round: nothing is computed here."""

    def batch(self) -> Batch | None:
        """The batch at hand, once it is complete; the sampler then stands before the next."""

    def state(self) -> Mapping[str, Any]:
        """What `load` needs to go on from the batch at hand, as plain JSON."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler stood."""
