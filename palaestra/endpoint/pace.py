"""Limits on requests, first come, first served: a maximum amount in any minute, and a number at once that adapts."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

_LOOK = 1.0
"""Seconds after which a waiting caller checks again, since booked amounts may have been corrected."""
_LOWERED = 0.7
"""Share of the requests at once that is left after a refusal."""


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


class AtOnce:
    """Number of requests at once: at most `maximum`. It falls when a server refuses requests for their rate, and each
    round of answers raises it by one again. One event loop uses it.
    """

    def __init__(self, maximum: int) -> None:
        self.maximum, self.limit = maximum, float(maximum)
        self._busy = self._outdated = 0
        """Requests under way, and those of them that began before the limit was last lowered."""
        self._paused_until = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, first: bool) -> None:
        """Wait for a place. A request that was sent before goes `first`, so that it does not run out of patience."""
        turn = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)(turn)
        self._fill()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """Leave the place."""
        self._busy -= 1
        self._outdated = max(0, self._outdated - 1)
        self._fill()

    def answered(self) -> None:
        """Raise the limit a little."""
        self.limit = min(self.maximum, self.limit + 1 / self.limit)

    def refused(self, wait: float | None) -> None:
        """Lower the limit, once for all requests under way, and send no request for `wait` seconds."""
        if not self._outdated:
            self.limit, self._outdated = max(1.0, min(self.limit, self._busy) * _LOWERED), self._busy
        loop = asyncio.get_running_loop()
        if wait and loop.time() + wait > self._paused_until:
            self._paused_until = loop.time() + wait
            loop.call_later(wait + 0.001, self._fill)

    def _fill(self) -> None:
        """Let those in who fit."""
        while self._waiting and self._busy < int(self.limit):
            if asyncio.get_running_loop().time() < self._paused_until:
                return
            turn = self._waiting.popleft()
            if not turn.done():
                self._busy += 1
                turn.set_result(None)
