"""The port of search: documents found for a query, and read by id. What every engine and every client of one gives.

Left out: how a query is answered (the backends, `opening`), and what an agent is shown of it (`envs.tools.search`).
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
    """Higher is better; comparable within one query alone."""
    url: str = ""


class Index(Protocol):
    """An engine, or a client of one. Everything that an agent can cause is a ToolError; a dead server is Broken."""

    waits: bool
    """True if an answer comes over a network; an index in this process answers without awaiting anything."""

    @property
    def version(self) -> str:
        """Return the key of a cache: it changes when any answer may differ."""

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best `k` hits of each query, the best first, in one trip."""

    async def get(self, id: str) -> Document:
        """Return a document by the id of a hit; raise ToolError if there is none, or if the engine gives none."""

    def close(self) -> None:
        """Release its resources. It may be called twice, from any thread."""
