"""Choose a server for a turn: the one that has computed the beginning of the turn's row, unless it is overloaded.

A server keeps the keys and values of the rows that it has computed, so the next turn of a row costs only its new tokens
there, and the whole row on any other server. Left out: whether a server is ready (`fleet`).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from palaestra.agents.engines.vllm.replica import Replica

_OVERLOADED = 2.0
"""A row leaves its server if that has more than this many times the mean number of turns."""
_REMEMBERED_ROWS = 65_536
"""Number of rows whose server is remembered: more than all servers together keep in their caches."""


@dataclass(eq=False, slots=True)
class PendingRequest:
    """A request that is not answered yet."""

    ticket: int
    row: int
    body: dict[str, Any]
    max_tokens: int
    name: str = field(default_factory=lambda: uuid4().hex)
    at: Replica | None = None
    cancelled: bool = False


class StickyRoutes:
    """The server of each row. A row without one gets the server with the fewest turns."""

    def __init__(self) -> None:
        self._homes: OrderedDict[int, Replica] = OrderedDict()

    def choose(self, row: int, ready: Sequence[Replica]) -> Replica:
        """Return the server for the next turn of this row, and remember it."""
        limit = _OVERLOADED * max(1.0, sum(replica.load for replica in ready) / len(ready))
        home = self._homes.pop(row, None)
        if home is None or home not in ready or home.load > limit:
            home = min(ready, key=lambda replica: replica.load)
        self._homes[row] = home
        if len(self._homes) > _REMEMBERED_ROWS:
            self._homes.popitem(last=False)
        return home
