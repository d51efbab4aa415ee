"""A file of episodes that grows while they are played (FILE.jsonl), and the settings that they are played with.

Each episode is on disk before the next one ends, so what was killed or stopped can be resumed: by one process at a
time, and only with the same settings. Left out: which episodes are in it (`rollout_file`, `eval_file`).
"""

import fcntl
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from palaestra.errors import UsageError
from palaestra.reading import parsed_json, regular_text
from palaestra.record import Defect, Record, Recorder, from_line, scan
from palaestra.trainers.run.atomic_files import write_text
from palaestra.trainers.run.saved_config import differences

_SHOWN = 10
"""Maximum number of lines without an episode that are named; all are counted."""


class EpisodeFile:
    """A file that episodes are added to. Until it is closed, no other process can open it."""

    OPTION: ClassVar[str] = "--out"
    """Option that names the file."""

    def __init__(self, path: Path, about: Path, settings: Mapping[str, Any]) -> None:
        """`settings` holds everything that decides an episode: plain values, which are written to `about`."""
        self.path, self.about = path, about
        self.notes: list[str] = []
        """Notes for whoever resumes."""
        self.defects = 0
        self._settings = settings
        self._claim()
        try:
            self._agree()
            if note := mend(self.path):
                self.notes.append(note)
            for record in self._scanned(count_defects=True):
                self._note_played(record)
            write_text(self.about, json.dumps(self._settings, indent=2) + "\n")
            self._recorder = Recorder(self.path)
        except BaseException:  # An interrupt too: another process may open the file then.
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.close()
        if not self.path.stat().st_size:  # Nothing was played, so no file is left.
            self.path.unlink()
            self.about.unlink(missing_ok=True)
        self._lock.close()

    def _note_played(self, record: Record) -> None:
        """Take note of an episode that was played before. Raise a UsageError if it does not belong here."""
        raise NotImplementedError

    def _claim(self) -> None:
        """Lock the file, since two processes would play everything twice."""
        if self.path.is_symlink():  # Appending and repairing would change another file.
            raise UsageError(f"{self.path} is a link; put what it leads to in its place, or name another {self.OPTION}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self.path.open("ab")
        except OSError as error:
            raise UsageError(f"the episode file {self.path} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # The kernel releases it when we end.
        except OSError as error:
            self._lock.close()
            raise UsageError(
                f"{self.path} is in use by another process; wait for it, or name another {self.OPTION}"
            ) from error

    def _agree(self) -> None:
        """Raise a UsageError if the file was begun with other settings."""
        if not self.path.stat().st_size or not self.about.exists():
            return
        try:
            before = parsed_json(regular_text(self.about))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.about} cannot be read ({error}). Delete it to continue; its settings are then not checked"
            ) from error
        if not isinstance(before, dict):
            raise UsageError(f"{self.about} holds no settings. Delete it to continue")
        now = json.loads(json.dumps(self._settings))
        self._refuse({name: before.get(name) for name in now}, now)

    def _refuse(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if changes := differences(before, now):
            raise UsageError(
                f"{self.path} was begun with other settings: {changes}; repeat those to go on with it, or name another "
                f"{self.OPTION}"
            )

    def _scanned(self, count_defects: bool = False) -> Iterator[Record]:
        for entry in scan(self.path):
            if not isinstance(entry, Defect):
                yield entry
            elif count_defects:
                self.defects += 1
                if self.defects <= _SHOWN:
                    self.notes.append(f"{self.path}, line {entry.line}: {entry.reason}; that episode is played again")


def mend(path: Path) -> str:
    """Repair a file whose last line was cut off. Return a note about the bytes that were removed; "" if none were."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return ""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            whole = content.rfind(b"\n") + 1
        if whole == size:
            return ""
        file.seek(whole)
        try:
            from_line(file.read())
        except ValueError:
            file.truncate(whole)
            return (
                f"{path}: its last line was cut off (its writer was killed?); these {size - whole} bytes were removed, "
                "and that episode is played again"
            )
        file.write(b"\n")  # Only the end of the line was missing.
    return ""
