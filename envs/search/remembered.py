"""Any index, with its answers remembered: the episodes of a group ask the same questions again and again.

An answer is kept by (version of the index, query, k). Of a server, one question that several ask at once is asked once,
and questions that come together go in one trip where it takes several. Left out: answers that are remembered on disk.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from palaestra.envs.search.index import Document, Hit, Index

ENTRIES = 4096
CHARS = 64_000_000
"""Of all texts that are remembered; the answers that were not wanted for longest go first."""
GATHER_SECONDS = 0.002
"""In which questions to a server that takes several at once are gathered."""
Key = tuple[str, str, int]


class Remembered:
    """An index, and what it answered lately. `entries=0` remembers nothing."""

    def __init__(self, index: Index, entries: int = ENTRIES) -> None:
        self.index = index
        self.waits = index.waits
        self.hits = 0
        """Questions that were answered from memory."""
        self.misses = 0
        """Questions that the index was asked."""
        self._entries, self._chars = entries, 0
        self._kept: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._guard, self._checking = threading.Lock(), threading.Lock()
        self._checked = False
        self._asked: dict[Key, asyncio.Future[list[Hit]]] = {}
        self._trips: set[asyncio.Task[None]] = set()
        self._batch: int = getattr(index, "batch", 1)
        """Queries that one trip takes: an attribute of clients that can."""
        self._gathered: list[tuple[Key, asyncio.Future[list[Hit]]]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments for pickle: another process has a cache of its own."""
        return Remembered, (self.index, self._entries)

    @property
    def version(self) -> str:
        """Return the version of the index."""
        return self.index.version

    @property
    def trouble(self) -> str:
        """Why the last try of a client failed; empty where it went well, or where no server is asked."""
        return str(getattr(self.index, "trouble", ""))

    def check(self) -> None:
        """Once: is the server of a client there? May wait; a UsageError where it cannot be used."""
        with self._checking:
            if not self._checked:
                getattr(self.index, "check", lambda: None)()
                self._checked = True

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best hits of each query, from memory where they are there."""
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
        """A document; these are not remembered, since an episode holds the one that it reads."""
        return await self.index.get(id)

    def close(self) -> None:
        """Forget everything, and close the index."""
        with self._guard:
            self._kept.clear()
            self._chars = 0
        self.index.close()

    # Inside.

    def _recall(self, key: Key) -> list[Hit] | None:
        with self._guard:
            hits = self._kept.get(key)
            if hits is None:
                self.misses += 1
            else:
                self.hits += 1
                self._kept.move_to_end(key)
            return hits

    def _keep(self, key: Key, hits: list[Hit]) -> list[Hit]:
        with self._guard:
            if self._entries and key not in self._kept:
                self._kept[key] = hits
                self._chars += _size(key, hits)
                while len(self._kept) > self._entries or self._chars > CHARS:
                    self._chars -= _size(*self._kept.popitem(last=False))
        return hits

    async def _ask(self, key: Key) -> list[Hit]:
        """Ask a server, or wait for the same question in flight. A cancelled caller does not cancel the others."""
        loop = asyncio.get_running_loop()
        future = self._asked.get(key)
        if future is None or future.get_loop() is not loop:
            future = self._asked[key] = loop.create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # Somebody may wait, or nobody.
            if self._batch == 1:
                self._depart([(key, future)])
            else:
                self._gather(key, future, loop)
        return await asyncio.shield(future)

    def _gather(self, key: Key, asked: "asyncio.Future[list[Hit]]", loop: asyncio.AbstractEventLoop) -> None:
        """Into the trip that leaves next from this loop."""
        if self._gathered and self._gathered[0][1].get_loop() is not loop:
            self._depart([(key, asked)])  # Another loop gathers; so this one goes alone.
            return
        self._gathered.append((key, asked))
        if len(self._gathered) == 1:
            loop.call_later(GATHER_SECONDS, self._leave)

    def _leave(self) -> None:
        gathered, self._gathered = self._gathered, []
        by_k: dict[tuple[str, int], list[tuple[Key, asyncio.Future[list[Hit]]]]] = {}
        for entry in gathered:
            by_k.setdefault((entry[0][0], entry[0][2]), []).append(entry)
        for alike in by_k.values():
            for begin in range(0, len(alike), self._batch):
                self._depart(alike[begin : begin + self._batch])

    def _depart(self, asked: "list[tuple[Key, asyncio.Future[list[Hit]]]]") -> None:
        trip = asyncio.get_running_loop().create_task(self._trip(asked))
        self._trips.add(trip)
        trip.add_done_callback(self._trips.discard)

    async def _trip(self, asked: "list[tuple[Key, asyncio.Future[list[Hit]]]]") -> None:
        try:
            answers = await self.index.search_many([key[1] for key, _ in asked], asked[0][0][2])
            for (key, future), hits in zip(asked, answers, strict=True):
                self._keep(key, hits)
                if not future.done():
                    future.set_result(hits)
        except BaseException as error:
            for _, future in asked:
                if not future.done():
                    future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            for key, future in asked:
                if self._asked.get(key) is future:
                    del self._asked[key]


def _size(key: Key, hits: list[Hit]) -> int:
    return len(key[1]) + sum(len(hit.text) + len(hit.title) for hit in hits)
