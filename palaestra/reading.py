"""Read episode files, or all files of folders, one after another, and report lines that are not episodes.

A folder is not trusted: reading a pipe or a device in it may never end, and JSON may nest deeper than Python can read.
Both raise errors that every caller expects.
"""

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from palaestra.errors import UsageError
from palaestra.record import Defect, Record, scan

_SHOWN = 10


def regular_text(path: Path) -> str:
    """Return the text of a regular file. Raise an OSError for anything else, such as a pipe, which may never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.read_text(encoding="utf-8")


def parsed_json(text: str) -> Any:
    """Return the value of a JSON text. Raise a ValueError if it is not JSON or nests too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def episode_files(paths: Sequence[Path]) -> list[Path]:
    """Return these files, and all .jsonl files in these folders. For a run's folder, its folder `episodes` is taken."""
    files: list[Path] = []
    for path in paths:
        folder = path / "episodes" if (path / "episodes").is_dir() else path
        files += sorted(filter(Path.is_file, folder.glob("*.jsonl"))) if folder.is_dir() else [path]
    if not files:
        raise UsageError(f"there are no episode files (*.jsonl) in {', '.join(map(str, paths))}")
    return files


class RecordReader:
    """Iterates over the records of several files. Lines that are not records are counted and reported to `say`."""

    def __init__(self, paths: Sequence[Path], say: Callable[[str], object]) -> None:
        self.files = episode_files(paths)
        self.defects = 0
        self.path = self.files[0]
        """File of the current record."""
        self._say = say
        self._reported = 0

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        """Yield pairs: a text that names the record's file and number, and the record."""
        for path in self.files:
            self.path = path
            unreported: list[Defect] = []
            before, whole = self.defects, False
            for number, entry in enumerate(scan(path), start=1):
                if isinstance(entry, Defect):
                    self.defects += 1
                    if len(unreported) < _SHOWN:
                        unreported.append(entry)
                if isinstance(entry, Record) or whole:
                    whole = True
                    self._report(path, unreported)
                    unreported.clear()
                if isinstance(entry, Record):
                    yield f"{path}, episode {number}", entry
            if unreported:  # A file of another kind needs one line, not one for each of its own.
                count, first = self.defects - before, unreported[0]
                self._say(f"{path}: none of its {count} lines is an episode; line {first.line}: {first.reason}")

    def _report(self, path: Path, defects: Sequence[Defect]) -> None:
        for defect in defects[: _SHOWN - self._reported]:
            self._reported += 1
            self._say(f"{path}, line {defect.line}: {defect.reason}")
