"""`open_index`: an engine, or a client of one, by its backend's name."""

from typing import Any

from palaestra.envs.core.backends import Backends, Where
from palaestra.envs.search.index import Index

INDEXES: Backends[Index] = Backends(
    "search",
    "open_index",
    {
        "embedded": "palaestra.envs.search.embedded:EmbeddedIndex",
        "dense": "palaestra.envs.search.dense:DenseIndex",
        "hybrid": "palaestra.envs.search.hybrid:HybridIndex",
        "retrieve": "palaestra.envs.search.retrieve:RetrieveClient",
        "http": "palaestra.envs.search.http:HttpSearch",
    },
)


def open_index(search: Where = "embedded", **options: Any) -> Index:
    """Open an index; `palaestra.envs.tools.search` shares one a process instead."""
    name, given = INDEXES.read(search)
    return INDEXES.open(name, **{**given, **options})
