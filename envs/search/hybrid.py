"""By words and by meaning together: two engines' answers, fused by their ranks alone.

Reciprocal rank fusion: a document's score is the sum of 1 / (60 + its rank) over the lists that have it. It needs no
scores that could be compared. Left out: weights, and models that order anew.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from palaestra.envs.search.dense import DenseIndex
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.index import Document, Hit, Index

_CONSTANT = 60
_MIN_DEPTH = 50
"""Hits of each index that are fused, or `k` if that is more."""


class HybridIndex:
    """An index that `palaestra index build --dense MODEL` made, asked both ways."""

    waits = True
    batch = 64

    def __init__(self, path: str | Path, *, model: str = "", device: str = "cpu", probes: int = 32) -> None:
        """The options are those of a `DenseIndex`."""
        self.indexes: tuple[Index, ...] = (
            EmbeddedIndex(path),
            DenseIndex(path, model=model, device=device, probes=probes),
        )

    @classmethod
    def of(cls, *indexes: Index) -> "HybridIndex":
        """Return a hybrid of indexes over the same documents. Documents are read from the first."""
        hybrid = cls.__new__(cls)
        hybrid.indexes = indexes
        return hybrid

    @property
    def version(self) -> str:
        """Return the versions of all indexes."""
        return " + ".join(index.version for index in self.indexes)

    def check(self) -> None:
        """Check all indexes; raise UsageError if one cannot be used."""
        for index in self.indexes:
            getattr(index, "check", lambda: None)()

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best hits of each query."""
        depth = max(k, _MIN_DEPTH)
        answers = await asyncio.gather(*(index.search_many(queries, depth) for index in self.indexes))
        return [fused(lists, k) for lists in zip(*answers, strict=True)]

    async def get(self, id: str) -> Document:
        """Return a document by its id."""
        return await self.indexes[0].get(id)

    def close(self) -> None:
        """Close all indexes."""
        for index in self.indexes:
            index.close()


def fused(lists: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """Return the best of several ranked lists; of two with equal scores the one that came first."""
    scores: dict[str, float] = {}
    hits: dict[str, Hit] = {}
    for ranked in lists:
        for rank, hit in enumerate(ranked, 1):
            scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (_CONSTANT + rank)
            hits.setdefault(hit.id, hit)
    best = sorted(scores, key=lambda id: -scores[id])[: max(k, 0)]
    return [replace(hits[id], score=scores[id]) for id in best]
