"""The episodes of a collection (FILE.played.jsonl), and the settings that they are played with (FILE.collect.json).

Each episode is on disk before the next one ends, so a collection that was killed or stopped can be resumed: by one
process at a time, and only with the same agent, environment and settings. Left out: playing and choosing episodes.
"""

import fcntl
import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from palaestra.episode import Episode, Start
from palaestra.errors import UsageError
from palaestra.reading import parsed_json, regular_text
from palaestra.record import Defect, Record, Recorder, from_line, scan
from palaestra.trainers.run.atomic_files import write_text
from palaestra.trainers.run.saved_config import differences

_SEED, _SAMPLE = 44, 32
"""Lowest bits of the run's seed and of the sample's number in a Start's seed; the bits of the task are below."""
_SHOWN = 10
"""Maximum number of lines without an episode that are named; all are counted."""
MOST_SAMPLES = 2 ** (_SEED - _SAMPLE)


def start_of(seed: int, task: int, sample: int) -> Start:
    """Return the Start of a task's sample in a run. It depends only on these numbers, so more can be played later."""
    return Start(task=task, seed=(seed << _SEED) + (sample << _SAMPLE) + task, group=task)


class RolloutFile:
    """The episodes of one collection. Until it is closed, no other process can open it."""

    def __init__(
        self, out: Path, env_id: str, agent: str, seed: int, settings: Mapping[str, Any], *, synthetic: bool = False
    ) -> None:
        """`settings` holds everything else that decides an episode: plain values, which must not change later."""
        self.path = out.with_name(f"{out.stem}.played.jsonl")
        self.about = out.with_name(f"{out.stem}.collect.json")
        self.notes: list[str] = []
        """Notes for whoever resumes the collection."""
        self.done: set[tuple[int, int]] = set()
        """Task and seed of each Start that was scored."""
        self.defects = 0
        self._synthetic = synthetic
        self._settings = {"env_id": env_id, "agent": agent, "seed": seed, **settings}
        if out.exists() and not (self.path.exists() or self.about.exists()):
            raise UsageError(f"{out} exists, and no collection has made it; remove it, or name another file with --out")
        self._claim()
        try:
            self._agree()
            if note := mend(self.path):
                self.notes.append(note)
            self._look()
            write_text(self.about, json.dumps(self._settings, indent=2) + "\n")
            self._recorder = Recorder(self.path)
        except BaseException:
            self._lock.close()
            raise

    def add(self, episode: Episode) -> None:
        """Append an episode to the file."""
        about = self._settings
        self._recorder.add(
            Record(about["env_id"], episode, dict(about["options"]), about["agent"], (), self._synthetic)
        )
        if episode.reward is not None:
            self.done.add((episode.start.task, episode.start.seed))

    def records(self, starts: Sequence[Start]) -> list[Record]:
        """Return one record for each of these Starts that was played, in their order. If several tries of a Start are
        recorded, it is the scored one."""
        records: dict[tuple[int, int], Record] = {}
        for record in self.every(starts):
            key = record.episode.start.task, record.episode.start.seed
            if key not in records or records[key].episode.reward is None:
                records[key] = record
        keys = [(start.task, start.seed) for start in starts]
        return [records[key] for key in keys if key in records]

    def every(self, starts: Sequence[Start]) -> Iterator[Record]:
        """Yield all records of these Starts in the order of the file, also BROKEN ones and their repetitions."""
        keys = {(start.task, start.seed) for start in starts}
        for record in self._scanned():
            if (record.episode.start.task, record.episode.start.seed) in keys:
                yield record

    @property
    def weights(self) -> str:
        """Digest of the weights that play; "" if it is not known."""
        return str(self._settings.get("weights", ""))

    def summarise(self, figures: Mapping[str, Any]) -> None:
        """Write the figures beside the settings of the collection."""
        write_text(self.about, json.dumps({**self._settings, **figures}, indent=2) + "\n")

    def __enter__(self) -> "RolloutFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.close()
        if not self.path.stat().st_size:  # Nothing was played, so no file is left.
            self.path.unlink()
            self.about.unlink(missing_ok=True)
        self._lock.close()

    def _claim(self) -> None:
        """Lock the file, since two processes would play everything twice."""
        if self.path.is_symlink():  # Appending and repairing would change another file.
            raise UsageError(f"{self.path} is a link; put what it leads to in its place, or name another --out")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self.path.open("ab")
        except OSError as error:
            raise UsageError(f"the episode file {self.path} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # The kernel releases it when we end.
        except OSError as error:
            self._lock.close()
            raise UsageError(f"{self.path} is in use by another process; wait for it, or name another --out") from error

    def _agree(self) -> None:
        """Raise a UsageError if the file was begun with other settings."""
        if not self.path.stat().st_size or not self.about.exists():
            return
        try:
            before = parsed_json(regular_text(self.about))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.about} cannot be read ({error}). Delete it to continue; the settings of the collection are "
                "then not checked"
            ) from error
        if not isinstance(before, dict):
            raise UsageError(f"{self.about} holds no settings of a collection. Delete it to continue")
        now = json.loads(json.dumps(self._settings))
        self._refuse({name: before.get(name) for name in now}, now)

    def _look(self) -> None:
        """Read which episodes were scored, and raise a UsageError if one belongs to another collection."""
        now = {name: self._settings[name] for name in ("env_id", "agent", "seed", "options")}
        now["env_id"] = now["env_id"].rpartition(":")[2]
        for record in self._scanned(count_defects=True):
            start, env_id = record.episode.start, record.env_id.rpartition(":")[2]
            then = (env_id, record.agent, start.seed >> _SEED, dict(record.options))
            self._refuse(dict(zip(now, then, strict=True)), now)
            if record.episode.reward is not None:
                self.done.add((start.task, start.seed))

    def _refuse(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        if changes := differences(before, now):
            raise UsageError(
                f"{self.path} was begun otherwise: {changes}; ask as before to go on with it, or name another --out"
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
