"""Episodes on disk: each is one line of JSON, with everything that is needed to view, replay or rescore the episode.

A line holds the environment, the agent, the Start, the Attempt with its calls and outcomes, the token rows, the reward
with its parts, and the training record if the episode was trained on. A line also holds a digest of its content, so a
line that was cut off or changed is detected (a new layout by `jq` keeps the digest valid).

Left out: running an episode again (`envs.records.replay`), and showing it (`palaestra view`).
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Episode, TokenRow
from palaestra.episode_json import (
    episode_from_json,
    episode_to_json,
    finite,
    numbers_by_name,
    numbers_from_json,
    numbers_to_json,
    of_kind,
)
from palaestra.errors import RecordError, UsageError
from palaestra.plain import from_plain, to_plain

VERSION = 2


@dataclass(frozen=True, slots=True)
class Lesson:
    """Training record of an episode. It is stored beside the episode, since it depends on the group and the recipe."""

    step: int
    terms: Mapping[str, float]
    """Terms of the training reward by name; their sum was compared within the group."""
    advantage: float
    trainer_logprobs: tuple[NDArray[np.float32], ...] = ()
    """Log-probs of the tokens under the trainer's weights, one array for each token row, 0 where not sampled; empty if
    they were never computed (an advantage of 0 has no gradient)."""
    updates: int = 0
    """Optimizer steps of this batch before `trainer_logprobs`; where it is 0, engine and trainer must agree."""
    remarks: Mapping[str, Any] = field(default_factory=dict)
    """Further output of a judge, in addition to its terms: its score, its critique."""


@dataclass(frozen=True, slots=True)
class Record:
    """An episode with its environment, its agent and its training records: one line of an episode file."""

    env_id: str
    episode: Episode
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment, its split among them."""
    agent: str = ""
    """Name of the agent that played."""
    lessons: tuple[Lesson, ...] = ()
    """Training records, one for each time that a batch held the episode."""
    synthetic: bool = False
    """True for an episode that no agent played: its calls were inserted into a written solution, and run."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A line that is not a record, and the reason."""

    line: int
    reason: str


def scan(path: Path) -> Iterator[Record | Defect]:
    """Yield each line of a file: a Record, or a Defect for a line that was cut off, changed, or never was a record."""
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            try:
                yield from_line(line)
            except ValueError as error:
                yield Defect(number, str(error))
            except RecursionError:
                yield Defect(number, "it nests deeper than any episode does")


def read(path: Path) -> Iterator[Record]:
    """Yield every record of a file. Raise a RecordError that names the line if a line is not a record."""
    for record in scan(path):
        if isinstance(record, Defect):
            raise RecordError(path, record.line, record.reason)
        yield record


def write(path: Path, records: Iterable[Record]) -> int:
    """Write all records to a file, and return their number. If that fails, an old file stays as it was."""
    unfinished, count = path.with_name(path.name + ".part"), 0
    opened = _opened_to_write(unfinished, "xb")
    try:
        with opened as file:
            for record in records:
                file.write(to_line(record))
                count += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    return count


class Recorder:
    """Appends records to a file. Each record is on disk as a whole line before the next one is added."""

    def __init__(self, path: Path) -> None:
        """Open the file to append. Raise a UsageError if the last line of an existing file was cut off."""
        self.path = path
        self._file = _opened_to_write(path, "ab+", buffering=0)
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.close()
                raise UsageError(
                    f"the last line of {path} is cut off (its writer was killed?); remove that line to add more"
                )

    def add(self, record: Record) -> None:
        """Append one record."""
        line, place = to_line(record), self._file.tell()
        try:
            while line:
                line = line[self._file.write(line) or 0 :]
        except OSError as error:
            self._file.truncate(place)  # A full disk: no partial line remains.
            error.filename = str(self.path)
            raise

    def close(self) -> None:
        """Close the file. Nothing is buffered."""
        self._file.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def to_line(record: Record) -> bytes:
    """Return the line of a record, with a newline at its end."""
    content = {"palaestra": VERSION, **_record_out(record)}
    text = json.dumps({"digest": _digest(content), **content}, ensure_ascii=False, allow_nan=False)
    # A lone surrogate, which a task file may hold, has no UTF-8 form.
    return text.encode("utf-8", "surrogatepass") + b"\n"


def from_line(line: bytes) -> Record:
    """Return the record of a line. Raise a ValueError with the reason if it is not one."""
    try:
        content = json.loads(line.decode("utf-8", "surrogatepass"))
    except ValueError:
        raise ValueError("it is not whole JSON: cut off while it was written, or changed") from None
    if not isinstance(content, dict) or "palaestra" not in content:
        raise ValueError("it is JSON but no episode of palaestra's")
    if content["palaestra"] != VERSION:
        raise ValueError(f"it has version {content['palaestra']!r}; this palaestra reads version {VERSION}")
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise ValueError("its digest does not fit its content: it was changed after it was written")
    try:
        return _record_in(content)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"its fields are not those of an episode: {type(error).__name__}: {error}") from None


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise UsageError(f"the episode file {path} cannot be read: {error.strerror or error}") from error


def _opened_to_write(path: Path, mode: str, buffering: int = -1) -> IO[bytes]:
    try:
        if "x" in mode:  # A link there, in an untrusted folder, would lead elsewhere.
            path.unlink(missing_ok=True)
        return path.open(mode, buffering=buffering)
    except OSError as error:
        raise UsageError(f"the episode file {path} cannot be written: {error.strerror or error}") from error


def _record_out(record: Record) -> dict[str, Any]:
    return {
        "env_id": record.env_id,
        "options": to_plain(record.options, "options"),
        "agent": record.agent,
        **({"synthetic": True} if record.synthetic else {}),
        **episode_to_json(record.episode),
        "lessons": [_lesson_out(lesson, record.episode.rows) for lesson in record.lessons],
    }


def _record_in(content: Mapping[str, Any]) -> Record:
    options, episode = from_plain(content["options"]), episode_from_json(content)
    if not all(isinstance(name, str) for name in (content["env_id"], *options)):
        raise TypeError(f"expected names, and it has {content['env_id']!r} with the options {options!r}")
    of_kind(str, content["agent"], "agent")
    lessons = tuple(_lesson_in(lesson, episode.rows) for lesson in content["lessons"])
    synthetic = content.get("synthetic", False) is True
    return Record(content["env_id"], episode, options, content["agent"], lessons, synthetic)


def _lesson_out(lesson: Lesson, rows: Sequence[TokenRow]) -> dict[str, Any]:
    logprobs = zip(lesson.trainer_logprobs, rows, strict=bool(lesson.trainer_logprobs))
    return {
        "step": lesson.step,
        "terms": {name: float(value) for name, value in lesson.terms.items()},
        "advantage": float(lesson.advantage),
        "updates": lesson.updates,
        **({"remarks": to_plain(lesson.remarks, "remarks")} if lesson.remarks else {}),
        "trainer_logprobs": [numbers_to_json(values[row.sampled]) for values, row in logprobs],
    }


def _lesson_in(content: Mapping[str, Any], rows: Sequence[TokenRow]) -> Lesson:
    pairs = zip(rows, content["trainer_logprobs"], strict=False)
    logprobs = tuple(numbers_from_json(row.sampled, values) for row, values in pairs)
    return Lesson(
        of_kind(int, content["step"], "step"),
        numbers_by_name(content["terms"], "terms"),
        finite(content["advantage"], "advantage"),
        logprobs,
        of_kind(int, content["updates"], "updates"),
        of_kind(Mapping, from_plain(content.get("remarks", {})), "remarks"),
    )
