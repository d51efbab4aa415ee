"""Search by words and by meaning: the answers of both engines are combined by their ranks.

Reciprocal rank fusion: a document's score is the sum of 1 / (60 + its rank) over the lists that contain it. The
engines' own scores cannot be compared, and are not used. Left out: weights, and models that rank the hits again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from palaestra.envs.search.dense import DenseIndex
from palaestra.envs.search.embedded import EmbeddedIndex
from palaestra.envs.search.index import Document, Hit

_CONSTANT = 60
_MIN_DEPTH = 50
"""Hits of each index that are fused, or `k` if that is more."""


class HybridIndex:
    """An index from `palaestra index build --dense MODEL`, searched by words and by vectors; both lists are fused."""

    waits = True
    batch = 64

    def __init__(self, path: str | Path, *, model: str = "", device: str = "cpu", probes: int = 32) -> None:
        """Open the index. The options are those of a `DenseIndex`."""
        self.embedded = EmbeddedIndex(path)
        self.dense = DenseIndex(path, model=model, device=device, probes=probes)
        self.version = f"{self.embedded.version} + {self.dense.version}"

    def check(self) -> None:
        """Load the embedding model, and check it."""
        self.dense.check()

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best hits of each query."""
        depth = max(k, _MIN_DEPTH)
        answers = await asyncio.gather(*(index.search_many(queries, depth) for index in (self.embedded, self.dense)))
        return [fuse(lists, k) for lists in zip(*answers, strict=True)]

    async def get(self, id: str) -> Document:
        """Return a document by its id."""
        return await self.embedded.get(id)

    def close(self) -> None:
        """Close both indexes."""
        self.embedded.close()
        self.dense.close()


def fuse(lists: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """Combine several ranked lists and return the best `k` hits. Hits with equal scores keep the order of the lists."""
    scores: dict[str, float] = {}
    hits: dict[str, Hit] = {}
    for ranked in lists:
        for rank, hit in enumerate(ranked, 1):
            scores[hit.id] = scores.get(hit.id, 0.0) + 1 / (_CONSTANT + rank)
            hits.setdefault(hit.id, hit)
    best = sorted(scores, key=lambda id: -scores[id])[: max(k, 0)]
    return [replace(hits[id], score=scores[id]) for id in best]
