"""`open_index` opens a search engine, or a client of one, by the name of its backend."""

from pathlib import Path
from typing import Any

from palaestra.envs.core.backends import Backends, Where
from palaestra.envs.search.index import Index
from palaestra.envs.search.remembered import Remembered


class _Indexes(Backends[Index]):
    """Backends by name. A folder's path alone means "embedded", and an http address means "retrieve"."""

    also = "the folder of an index, an address, "

    def read(self, where: Where) -> tuple[str, dict[str, Any]]:
        if isinstance(where, str) and where.startswith(("http://", "https://")):
            return "retrieve", {"url": where}
        if isinstance(where, str) and where not in self.table and ("/" in where or Path(where).is_dir()):
            return "embedded", {"path": where}
        return super().read(where)

    def remembered(self, where: Where) -> Remembered:
        """Return the index of these options with its cache; this process shares both."""
        name, options = self.read(where)
        index = self.shared(name, **options)
        with self._lock:
            return _remembered.setdefault(id(index), Remembered(index))


_remembered: dict[int, Remembered] = {}
"""The cached index, by the id of the shared index, which is never freed."""
INDEXES = _Indexes(
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
    """Open a new index. To share one index in each process, use `palaestra.envs.tools.search` instead."""
    name, defaults = INDEXES.read(search)
    return INDEXES.open(name, **{**defaults, **options})
