"""Episode files as people name them, read one after another, and what is said of lines that are no episodes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from palaestra.errors import UsageError
from palaestra.record import Defect, Record, scan

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
    """The records of some files, one after another; lines that are no records are counted, and `say` is told."""

    def __init__(self, paths: Sequence[Path], say: Callable[[str], object]) -> None:
        self.files = episode_files(paths)
        self.defects = 0
        self.path = self.files[0]
        """Where the record at hand is from."""
        self._say = say
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
                self._say(f"{path}: none of its {count} lines is an episode; line {first.line}: {first.reason}")

    def _report(self, path: Path, defects: Sequence[Defect]) -> None:
        for defect in defects[: _SHOWN - self._reported]:
            self._reported += 1
            self._say(f"{path}, line {defect.line}: {defect.reason}")
