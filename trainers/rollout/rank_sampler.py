"""A sampler that plays one rank's share of another sampler's groups. All ranks get the same batches.

The task of a group depends only on the group's number, so every rank knows all groups. A rank plays some groups with
all their members, because these have the same prompt. When a rank has played its share it waits for the others; then
all ranks exchange their scored episodes. So the wrapped sampler gets the same episodes in the same order on every rank.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.episode import Start
from palaestra.trainers.batch import Batch, Scored
from palaestra.trainers.samplers.sampler import Sampler
from palaestra.trainers.scale.ranks import Ranks


class Share:
    """Sampler that returns only this rank's share of the starts of another sampler."""

    def __init__(self, whole: Sampler, ranks: Ranks, seats: Sequence[str] = ()) -> None:
        self._whole, self._ranks, self._seats = whole, ranks, max(1, len(seats))
        self._scored: list[Scored] = []
        self._out = 0
        """Number of episodes that began and are not scored yet."""
        self._ahead: Start | None = None

    def next(self, ahead: int = 0) -> Start | None:
        """Return the next start of this rank; None if there is none now."""
        start = self._peek()
        self._ahead = None
        self._out += start is not None
        return start

    def observe(self, scored: Scored) -> None:
        """Store a scored episode until all ranks exchange theirs."""
        self._scored.append(scored)
        self._out -= 1

    def still_needed(self, start: Start) -> bool:
        """Return True: every episode is played to its end, because the sampler gets no score before the exchange."""
        return True

    def batch(self) -> Batch | None:
        """Return the batch when all ranks have played their starts; return None before that."""
        if self._out or self._peek() is not None:
            return None
        for of_rank in self._ranks.gathered(self._scored):
            for scored in of_rank:
                self._whole.observe(scored)
        self._scored = []
        return self._whole.batch()

    def state(self) -> Mapping[str, Any]:
        """Return the state of the wrapped sampler; it equals that of a single-process run."""
        return self._whole.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self._whole.load(state)

    def _peek(self) -> Start | None:
        while self._ahead is None and (start := self._whole.next()) is not None:
            if start.group // self._seats % self._ranks.count == self._ranks.rank:
                self._ahead = start
        return self._ahead
