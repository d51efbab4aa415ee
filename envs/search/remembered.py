"""A cache for any index, because the episodes of a group send the same queries repeatedly.

An answer is cached by (version of the index, query, k). If several callers send a server the same query at once, it is
sent once. Queries that come together are sent in one request, if the server takes several. Left out: a cache on disk.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from palaestra.envs.search.index import Document, Hit, Index

ENTRIES = 4096
CHARS = 64_000_000
"""Maximum characters in the cache; the least recently used answers are dropped first."""
GATHER_SECONDS = 0.002
"""Seconds in which questions to a server that takes several at once are gathered."""
Key = tuple[str, str, int]
PendingQuery = tuple[Key, "asyncio.Future[list[Hit]]"]


class Remembered:
    """An index with a cache of its last answers. `entries=0` turns the cache off."""

    def __init__(self, index: Index, entries: int = ENTRIES) -> None:
        self.index = index
        self.waits = index.waits
        self.hits = 0
        """Number of questions answered from the cache."""
        self.misses = 0
        """Number of questions that the index was asked."""
        self._entries, self._chars = entries, 0
        self._cache: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._guard, self._checking = threading.Lock(), threading.Lock()
        self._checked = False
        self._in_flight: dict[Key, asyncio.Future[list[Hit]]] = {}
        self._trips: set[asyncio.Task[None]] = set()
        self._batch: int = getattr(index, "batch", 1)
        """Queries that one trip takes: an attribute of clients that can."""
        self._queues: dict[tuple[asyncio.AbstractEventLoop, str, int], list[PendingQuery]] = {}
        """Questions of the next trips, by loop, version and k."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments for pickle: another process gets its own empty cache."""
        return Remembered, (self.index, self._entries)

    @property
    def version(self) -> str:
        """Return the version of the index."""
        return self.index.version

    @property
    def trouble(self) -> str:
        """Return why a client's last request failed; "" if it succeeded, or if the index needs no server."""
        return str(getattr(self.index, "trouble", ""))

    def check(self) -> None:
        """Check a client's server, only once. It may wait. Raise UsageError if the server cannot be used."""
        with self._checking:
            if not self._checked:
                getattr(self.index, "check", lambda: None)()
                self._checked = True

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best hits of each query, from the cache if they are cached."""
        keys = [(self.index.version, query, k) for query in queries]
        hits_by_key = {key: self._recall(key) for key in dict.fromkeys(keys)}
        missing = [key for key, hits in hits_by_key.items() if hits is None]
        if missing and self.waits:
            hits_by_key.update(zip(missing, await asyncio.gather(*map(self._ask, missing)), strict=True))
        elif missing:
            answers = await self.index.search_many([query for _, query, _ in missing], k)
            hits_by_key.update(zip(missing, map(self._keep, missing, answers), strict=True))
        return [hits_by_key[key] or [] for key in keys]

    async def get(self, id: str) -> Document:
        """Return a document. Documents are not cached, because an episode keeps the one that it reads."""
        return await self.index.get(id)

    def close(self) -> None:
        """Clear the cache, and close the index."""
        with self._guard:
            self._cache.clear()
            self._chars = 0
        self.index.close()

    # Private methods.

    def _recall(self, key: Key) -> list[Hit] | None:
        with self._guard:
            hits = self._cache.get(key)
            if hits is None:
                self.misses += 1
            else:
                self.hits += 1
                self._cache.move_to_end(key)
            return hits

    def _keep(self, key: Key, hits: list[Hit]) -> list[Hit]:
        with self._guard:
            if self._entries and key not in self._cache:
                self._cache[key] = hits
                self._chars += _size(key, hits)
                while len(self._cache) > self._entries or self._chars > CHARS:
                    self._chars -= _size(*self._cache.popitem(last=False))
        return hits

    async def _ask(self, key: Key) -> list[Hit]:
        """Ask a server, or wait if the same question is being asked. Cancelling a caller does not cancel the others."""
        loop = asyncio.get_running_loop()
        future = self._in_flight.get(key)
        if future is None or future.get_loop() is not loop:
            future = self._in_flight[key] = loop.create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # Even if no caller waits.
            queue = self._queues.setdefault((loop, key[0], key[2]), [])
            queue.append((key, future))
            if self._batch == 1:
                self._send(loop, key)
            elif len(queue) == 1:
                loop.call_later(GATHER_SECONDS, self._send, loop, key)
        return await asyncio.shield(future)

    def _send(self, loop: asyncio.AbstractEventLoop, first: Key) -> None:
        """Send all queued questions with the loop, version and k of `first`, in as few requests as possible."""
        queue = self._queues.pop((loop, first[0], first[2]))
        for begin in range(0, len(queue), self._batch):
            trip = loop.create_task(self._trip(queue[begin : begin + self._batch]))
            self._trips.add(trip)
            trip.add_done_callback(self._trips.discard)

    async def _trip(self, queue: list[PendingQuery]) -> None:
        try:
            answers = await self.index.search_many([key[1] for key, _ in queue], queue[0][0][2])
            for (key, future), hits in zip(queue, answers, strict=True):
                self._keep(key, hits)
                if not future.done():
                    future.set_result(hits)
        except BaseException as error:
            for _, future in queue:
                if not future.done():
                    future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            for key, future in queue:
                if self._in_flight.get(key) is future:
                    del self._in_flight[key]


def _size(key: Key, hits: list[Hit]) -> int:
    return len(key[1]) + sum(len(hit.text) + len(hit.title) for hit in hits)
