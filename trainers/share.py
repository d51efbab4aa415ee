"""A sampler that plays one rank's share of another's groups; all ranks have the same batches.

Every group is drawn by its number, so each rank knows them all and plays every so manieth, whole: its members share
their prompt. When a rank has played its share of what can be played now, it waits, and all tell one another what they
have heard. So the sampler behind this hears the same on every rank, in one order, and asks the same of it next.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from palaestra.episode import Start
from palaestra.trainers.batch import Batch, Scored
from palaestra.trainers.sampling.sampler import Sampler
from palaestra.trainers.scale.ranks import Ranks


class Share:
    """A rank's share of a sampler."""

    def __init__(self, whole: Sampler, ranks: Ranks, seats: Sequence[str] = ()) -> None:
        self._whole, self._ranks, self._seats = whole, ranks, max(1, len(seats))
        self._heard: list[Scored] = []
        self._out = 0
        """Episodes that have begun and not been heard of."""
        self._ahead: Start | None = None

    def next(self, ahead: int = 0) -> Start | None:
        """What this rank is to play next."""
        start = self._peek()
        self._ahead = None
        self._out += start is not None
        return start

    def heard(self, scored: Scored) -> None:
        """Keep it until all ranks tell what they have."""
        self._heard.append(scored)
        self._out -= 1

    def wanted(self, start: Start) -> bool:
        """What was begun is played to its end: the sampler hears nothing that could change its mind before."""
        return True

    def batch(self) -> Batch | None:
        """The batch at hand, once all ranks have played what they can."""
        if self._out or self._peek() is not None:
            return None
        for of_rank in self._ranks.gathered(self._heard):
            for scored in of_rank:
                self._whole.heard(scored)
        self._heard = []
        return self._whole.batch()

    def state(self) -> Mapping[str, Any]:
        """Of the sampler behind it: that of a run in one process."""
        return self._whole.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where another sampler stood."""
        self._whole.load(state)

    def _peek(self) -> Start | None:
        while self._ahead is None and (start := self._whole.next()) is not None:
            if start.group // self._seats % self._ranks.count == self._ranks.rank:
                self._ahead = start
        return self._ahead
