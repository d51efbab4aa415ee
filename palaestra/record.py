"""Episodes on disk: one JSON line each, with everything that is needed to view it, replay it or score it again.

A line holds the environment, the agent, the Start, the Attempt with its calls and outcomes, the token rows, the reward
with its parts, and, where it was trained on, its training record. Every line carries a digest of its content (not of
its spelling: `jq` and `grep` may filter a file), so a line that was cut off or changed is detected.

Left out: running an episode again (`envs.records.replay`), and showing it (`palaestra view`).
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Attempt, Call, Ending, Episode, Start, Status, Task, TokenRow
from palaestra.errors import RecordError, UsageError
from palaestra.plain import from_plain, to_plain

VERSION = 2
_READ = (1, VERSION)


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
    """Further output of a judge beside its terms: its score, its critique."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of an episode file."""

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
    """Write a whole file, or leave the old one as it was. Return the number of records."""
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
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return count


class Recorder:
    """Appends records to a file; each is written whole before the next."""

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
        except OSError:
            self._file.truncate(place)  # A full disk: no partial line remains.
            raise

    def close(self) -> None:
        """Close the file. Nothing is buffered."""
        self._file.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def to_line(record: Record) -> bytes:
    """Return a record as its line."""
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
    if content["palaestra"] not in _READ:
        raise ValueError(f"it has version {content['palaestra']!r}; this palaestra reads versions {_READ}")
    digest = content.pop("digest", None)
    if digest != _digest(content):
        raise ValueError("its digest does not fit its content: it was changed after it was written")
    try:
        return _record_in(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
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
        if "x" in mode:  # A link there, in a folder of somebody else's, would lead elsewhere.
            path.unlink(missing_ok=True)
        return path.open(mode, buffering=buffering)
    except OSError as error:
        raise UsageError(f"the episode file {path} cannot be written: {error.strerror or error}") from error


def _record_out(record: Record) -> dict[str, Any]:
    episode = record.episode
    start, attempt = episode.start, episode.attempt
    return {
        "env_id": record.env_id,
        "options": to_plain(record.options, "options"),
        "agent": record.agent,
        **({"synthetic": True} if record.synthetic else {}),
        "start": {
            "task": start.task,
            "seed": start.seed,
            "group": start.group,
            "seat": start.seat,
            "prefix": to_plain(list(start.prefix)),
            **({"env": start.env} if start.env else {}),
            **({"greedy": True} if start.greedy else {}),
        },
        "task": {
            "prompt": attempt.task.prompt,
            "answer": to_plain(attempt.task.answer, "Task.answer"),
            "id": attempt.task.id,
            "data": to_plain(attempt.task.data, "Task.data"),
        },
        "tools": to_plain(list(episode.tools), "tools"),
        "messages": to_plain(list(attempt.messages), "messages"),
        "answer": attempt.answer,
        "calls": [
            {
                "name": call.name,
                "arguments": to_plain(call.arguments, "arguments"),
                "text": call.text,
                "status": str(call.status),
                "seconds": round(call.seconds, 6),
                **({} if call.written is None else {"written": to_plain(call.written, "arguments")}),
                **({} if call.answer is None else {"answer": call.answer}),
                **({} if call.result is None else {"result": call.result}),
            }
            for call in attempt.calls
        ],
        **{
            name: to_plain(value, f"Attempt.{name}")
            for name, value in (("final", attempt.final), ("seat", attempt.seat), ("worlds", list(attempt.worlds)))
            if value
        },
        "turns": attempt.turns,
        "ending": str(episode.ending),
        "reward": episode.reward,
        "parts": {name: float(value) for name, value in episode.parts.items()},
        "fault": episode.fault,
        "seconds": round(episode.seconds, 6),
        "rows": [_row_out(row) for row in episode.rows],
        "lessons": [
            {
                "step": lesson.step,
                "terms": {name: float(value) for name, value in lesson.terms.items()},
                "advantage": float(lesson.advantage),
                "updates": lesson.updates,
                **({"remarks": to_plain(lesson.remarks, "remarks")} if lesson.remarks else {}),
                "trainer_logprobs": [
                    _numbers(values[row.sampled])
                    for values, row in zip(lesson.trainer_logprobs, episode.rows, strict=bool(lesson.trainer_logprobs))
                ],
            }
            for lesson in record.lessons
        ],
    }


def _record_in(content: Mapping[str, Any]) -> Record:
    start, task, rows = content["start"], content["task"], tuple(_row_in(row) for row in content["rows"])
    options, messages = from_plain(content["options"]), from_plain(content["messages"])
    if not all(isinstance(name, str) for name in (content["env_id"], *options)):
        raise TypeError(f"expected names, and it has {content['env_id']!r} with the options {options!r}")
    calls = [_call_in(call) for call in content["calls"]]
    if content["ending"] == Ending.ANSWERED and messages and messages[-1]["role"] == "tool":
        ends = [index for index, call in enumerate(calls) if call.text == content["answer"]]
        if ends and all(call.answer is None for call in calls):  # Old files do not name the last call.
            calls[ends[-1]] = replace(calls[ends[-1]], answer=content["answer"])
    result_texts = [message["content"] for message in messages if message["role"] == "tool"]
    if len(result_texts) == len(calls):  # Old files hold the whole result as the text.
        pairs = zip(calls, result_texts, strict=True)
        calls = [item if item.text == text else replace(item, text=text, result=item.text) for item, text in pairs]
    attempt = Attempt(
        task=Task(task["prompt"], from_plain(task["answer"]), task["id"], from_plain(task["data"])),
        messages=tuple(messages),
        answer=content["answer"],
        calls=tuple(calls),
        turns=content["turns"],
        final=from_plain(content.get("final", {})),
        seat=content.get("seat", start["seat"] or options.get("seat")),  # Old files hold it in one of these.
        worlds=tuple(from_plain(content.get("worlds", []))),
    )
    episode = Episode(
        start=Start(**{**start, "prefix": tuple(from_plain(start["prefix"]))}),
        attempt=attempt,
        rows=rows,
        ending=Ending(content["ending"]),
        reward=content["reward"],
        parts=content["parts"],
        fault=content["fault"],
        tools=tuple(from_plain(content["tools"])),
        seconds=content["seconds"],
    )
    written = content["lessons"] if content["palaestra"] == VERSION else [content["lesson"]]
    lessons = tuple(_lesson_in(item, rows) for item in written if item is not None)
    return Record(
        content["env_id"], episode, options, content["agent"], lessons, content.get("synthetic", False) is True
    )


def _lesson_in(content: Mapping[str, Any], rows: Iterable[TokenRow]) -> Lesson:
    pairs = zip(rows, content["trainer_logprobs"], strict=False)
    logprobs = tuple(_spread(row.sampled, values) for row, values in pairs)
    remarks = from_plain(content.get("remarks", {}))
    return Lesson(content["step"], content["terms"], content["advantage"], logprobs, content["updates"], remarks)


def _call_in(content: Mapping[str, Any]) -> Call:
    plain = {"arguments": from_plain(content["arguments"]), "written": from_plain(content.get("written"))}
    return Call(**{**content, **plain, "status": Status(content["status"])})


def _row_out(row: TokenRow) -> dict[str, Any]:
    """Return a row as JSON: spans [begin, end) of sampled tokens, and log-probs and version runs of these tokens."""
    versions = row.versions[row.sampled]
    ends = np.flatnonzero(np.diff(versions, append=versions[-1:] - 1))
    lengths = np.diff(ends, prepend=-1)
    return {
        "ids": row.ids.tolist(),
        "sampled": np.flatnonzero(np.diff(row.sampled.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist(),
        "logprobs": _numbers(row.logprobs[row.sampled]),
        "versions": [[int(versions[end]), int(length)] for end, length in zip(ends, lengths, strict=True)],
    }


def _row_in(content: Mapping[str, Any]) -> TokenRow:
    ids = np.array(content["ids"], np.int32)
    sampled = np.zeros(len(ids), np.bool_)
    for begin, end in content["sampled"]:
        if not 0 <= begin < end <= len(ids):
            raise ValueError(f"the sampled span {begin} to {end} lies outside its row of {len(ids)} tokens")
        sampled[begin:end] = True
    versions = np.full(len(ids), -1, np.int32)
    runs = content["versions"]
    versions[sampled] = np.repeat([version for version, _ in runs], [length for _, length in runs])
    return TokenRow(ids, sampled, _spread(sampled, content["logprobs"]), versions)


def _numbers(values: NDArray[np.float32]) -> list[float | None]:
    """Return the values with nine digits, which restore a float32 exactly; NaN and infinities become None."""
    return [float(f"{value:.9g}") if math.isfinite(value) else None for value in values.tolist()]


def _spread(sampled: NDArray[np.bool_], values: list[float | None]) -> NDArray[np.float32]:
    spread = np.zeros(len(sampled), np.float32)
    spread[sampled] = [float("nan") if value is None else value for value in values]
    return spread
