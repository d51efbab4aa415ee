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
    """A passage of it, or all: what the engine shows of a document."""
    score: float
    """Higher is better; comparable within one query alone."""
    url: str = ""


class Index(Protocol):
    """An engine, or a client of one. Everything that an agent can cause is a ToolError; a dead server is Broken."""

    waits: bool
    """Whether an answer comes over a network: an engine in this process answers without awaiting anything."""

    @property
    def version(self) -> str:
        """What a cache is keyed by: another one when any answer may differ."""

    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best `k` hits of each query, the best first. One trip for all of them."""

    async def get(self, id: str) -> Document:
        """A document by the id of a hit. A ToolError where there is none, or where the engine cannot tell."""

    def close(self) -> None:
        """Give back what it holds. May come twice, from any thread."""
