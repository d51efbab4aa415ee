"""Rate limits as servers count them: a maximum amount in any minute, first come, first served."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

_LOOK = 1.0
"""Seconds after which a waiting caller checks again, since booked amounts may have been corrected."""


class Pace:
    """Allows at most `limit` in any `window` seconds (None: no limit). A larger amount waits for an empty window."""

    def __init__(self, limit: float | None, window: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._window = window
        self._clock = clock
        self._spent: deque[list[float]] = deque()
        """Pairs of time and amount, oldest first."""
        self._line = asyncio.Lock()

    async def take(self, amount: float) -> list[float]:
        """Wait until `amount` fits, book it, and return [time, amount]. The caller may later correct that amount."""
        entry = [0.0, amount]
        if self._limit is None:
            return entry
        async with self._line:
            while (wait := self._wait(min(amount, self._limit))) > 0:
                await asyncio.sleep(min(wait, _LOOK))
            entry[0] = self._clock()
            self._spent.append(entry)
        return entry

    def _wait(self, amount: float) -> float:
        """Return 0 if the amount fits now, else the seconds until the oldest entry leaves the window."""
        assert self._limit is not None
        now = self._clock()
        while self._spent and self._spent[0][0] + self._window <= now:
            self._spent.popleft()
        if sum(entry_amount for _, entry_amount in self._spent) + amount <= self._limit or not self._spent:
            return 0.0
        return max(self._spent[0][0] + self._window - now, 0.001)
