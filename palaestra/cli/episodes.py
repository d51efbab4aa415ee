"""Episode files as people name them on the command line, and what is said of lines that are none."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.ids import resolve
from palaestra.errors import UsageError
from palaestra.record import Defect, Record, scan

if TYPE_CHECKING:
    from palaestra.envs.records.gathering import Placed

_SHOWN = 10


def episode_files(paths: Sequence[Path]) -> list[Path]:
    """These files, and those in these folders; a run's folder means its episodes."""
    found: list[Path] = []
    for path in paths:
        folder = path / "episodes" if (path / "episodes").is_dir() else path
        found += sorted(folder.glob("*.jsonl")) if folder.is_dir() else [path]
    if not found:
        raise UsageError(f"there are no episode files (*.jsonl) in {', '.join(map(str, paths))}")
    return found


class Reading:
    """The records of some files, one after another; lines that are no records are reported and counted."""

    def __init__(self, paths: Sequence[Path], console: Console) -> None:
        self.files = episode_files(paths)
        self.defects = self.alone = 0
        self.path = self.files[0]
        """Where the record at hand is from."""
        self._console = console
        self._reported = 0

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        """Each record with the words that name its place."""
        for path in self.files:
            self.path = path
            unreported: list[Defect] = []
            before, whole = self.defects, False
            for number, found in enumerate(scan(path), start=1):
                if isinstance(found, Defect):
                    self.defects += 1
                    if len(unreported) < _SHOWN:
                        unreported.append(found)
                if isinstance(found, Record) or whole:
                    whole = True
                    self._report(path, unreported)
                    unreported.clear()
                if isinstance(found, Record):
                    yield f"{path}, episode {number}", found
            if unreported:  # A file of another kind needs one line, not one for each of its own.
                count, first = self.defects - before, unreported[0]
                show_line(
                    self._console, f"{path}: none of its {count} lines is an episode; line {first.line}: {first.reason}"
                )

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

    def _report(self, path: Path, defects: Sequence[Defect]) -> None:
        for defect in defects[: _SHOWN - self._reported]:
            self._reported += 1
            show_line(self._console, f"{path}, line {defect.line}: {defect.reason}")
