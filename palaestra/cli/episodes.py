"""Episode files on the command line: what is said of lines that are no episodes, and games with all of their seats."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from palaestra import reading
from palaestra.cli.display import show_line
from palaestra.cli.ids import resolve

if TYPE_CHECKING:
    from palaestra.envs.records.gathering import Placed


class Reading(reading.Reading):
    """Records one after another; whatever is wrong with a file is shown."""

    def __init__(self, paths: Sequence[Path], console: Console) -> None:
        super().__init__(paths, partial(show_line, console))
        self.alone = 0

    def whole(self) -> "Iterator[list[Placed]]":
        """Each episode, and the episodes of all seats of a game together; `alone` counts those that lack others."""
        from palaestra.envs.records.gathering import Gathering

        gathering, known = Gathering(), set[str]()
        for place, record in self:
            if record.env_id not in known:  # One of one's own is registered by the module that its id names.
                known.add(resolve(record.env_id))
            found = gathering.add(str(self.path), place, record)
            if found is not None:
                yield found
        self.alone = len(gathering.incomplete)
