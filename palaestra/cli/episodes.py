"""Read episode files for commands: report lines that are not episodes, and bring the seats of a game together."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from palaestra import reading
from palaestra.cli.display import show_line
from palaestra.cli.ids import resolve
from palaestra.registry import require_loaded

if TYPE_CHECKING:
    from palaestra.envs.records.gathering import Placed


class GameReader(reading.RecordReader):
    """Reader of the records of several files. It prints which lines are not records."""

    def __init__(self, paths: Sequence[Path], console: Console) -> None:
        super().__init__(paths, partial(show_line, console))
        self.alone = 0

    def whole(self) -> "Iterator[list[Placed]]":
        """Yield each episode of one seat as a list of one, and each game as the list of all its seats' episodes.

        At the end `alone` is the number of episodes whose game lacks another seat; they are not yielded.
        """
        from palaestra.envs.records.gathering import GameCollector

        gathering, loaded_ids = GameCollector(), set[str]()
        for place, record in self:
            if record.env_id not in loaded_ids:
                require_loaded(record.env_id, place)
                resolve(record.env_id)
                loaded_ids.add(record.env_id)
            episodes = gathering.add(str(self.path), place, record)
            if episodes is not None:
                yield episodes
        self.alone = len(gathering.incomplete)
