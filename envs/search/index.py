"""The interface of search, which every engine and every client of one has: find documents, read one by its id.

Left out: how a query is answered (the backends in `opening`), and what an agent sees of the answer
(`envs.tools.search`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One text that can be found."""

    id: str
    title: str
    text: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that was found."""

    id: str
    title: str
    text: str
    """A passage of the document, or all of it."""
    score: float
    """Score of the hit: higher is better. Only scores of the same query can be compared."""
    url: str = ""


class Index(Protocol):
    """An engine, or a client of one. An error that an agent can cause is a ToolError; a dead server is Broken."""

    waits: bool
    """True if an answer comes over a network; an index in this process answers without awaiting anything."""

    @property
    def version(self) -> str:
        """Return the part of a cache's key that changes whenever an answer may change."""

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best `k` hits of each query, the best first."""

    async def get(self, id: str) -> Document:
        """Return the document with the id of a hit. Raise ToolError if there is none, or if the engine returns none."""

    def close(self) -> None:
        """Release the index's resources. It may be called twice, from any thread."""
