"""The success of an evaluation that is under way, with its interval, for progress displays.

Left out: the report at the end (`evaluate`).
"""

import time
from collections.abc import Iterable

from palaestra.episode import Episode
from palaestra.trainers.evaluation.intervals import mean_interval

_INTERVAL_SECONDS = 0.25
"""Minimum seconds between two computations of the interval, which takes longer the more tasks there are."""

_FEW = 64
"""Number of tasks up to which it is computed each time."""


class SuccessSoFar:
    """Mean success of the scored episodes, and its 95 % interval over tasks."""

    def __init__(self, episodes: Iterable[Episode]) -> None:
        self._by_task: dict[tuple[str, int], tuple[float, int]] = {}
        self._count, self._sum = 0, 0.0
        self._interval, self._computed = (0.0, 1.0), 0.0
        for episode in episodes:
            self.add(episode)

    def add(self, episode: Episode) -> None:
        """Count an episode, unless it is BROKEN."""
        if episode.reward is not None:
            success, key = episode.parts["success"], episode.start.key[:2]
            total, count = self._by_task.get(key, (0.0, 0))
            self._by_task[key] = total + success, count + 1
            self._count, self._sum = self._count + 1, self._sum + success

    def metrics(self, tokens: int, last: bool) -> dict[str, float]:
        """Return the figures of a progress report; none while nothing is scored. The interval is up to date in the
        `last` one.
        """
        if not self._count:
            return {}
        few = len(self._by_task) <= _FEW
        if few or last or time.monotonic() - self._computed >= _INTERVAL_SECONDS:
            self._interval = mean_interval([total / count for total, count in self._by_task.values()])
            self._computed = time.monotonic()
        low, high = self._interval
        mean = self._sum / self._count
        return {"rewards/success/mean": mean, "success/low": low, "success/high": high, "tokens": tokens}
