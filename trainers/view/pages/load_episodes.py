"""Load the data to show: episodes of a run or of single files, metrics, config, and damaged lines.

A run is read while it is being written: each call of `Collection.news` continues where the last one stopped. Any part
may be missing: a run without episodes still has curves, and single files have no curves. Left out: the content of each
episode, which is read again from its file on request.
"""

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.errors import UsageError
from palaestra.reading import parsed_json, regular_text
from palaestra.record import Record, from_line
from palaestra.trainers.view.pages.episode_view import as_text, entry, numbers, pairs
from palaestra.trainers.view.pages.eval_results import measurements
from palaestra.trainers.view.pages.token_text import Pieces

_STEP_FILE = re.compile(r"step-(\d{1,12})")
_SETTLED_SECONDS = 5.0
"""Seconds without a write after which a last line without a newline is read. Before, it may still be written."""
_LONGEST_SETTINGS = 1_000_000
_MARKS = ("config.json", "metrics.jsonl", "summary.json", "episodes")


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """Location of an episode's line in a file."""

    path: Path
    offset: int
    length: int

    def read(self) -> Record:
        """Read the record. Raise `ValueError` if the file has changed and the line is damaged."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return from_line(file.read(self.length))


@dataclass(slots=True)
class _File:
    """A file, and how far it has been read."""

    path: Path
    label: str
    offset: int = 0
    line: int = 0
    inode: int = 0
    """Inode of the file when it was last opened; 0 before that."""
    fault: str = ""


class Collection:
    """Data of a run's folder or of episode files. The lists `entries`, `metrics` and `vocabulary` only grow."""

    def __init__(self, paths: Sequence[Path], steps: frozenset[int] | None = None) -> None:
        """Read episodes of these steps; if `steps` is None, all episodes, also those without a step."""
        self.run = _checked(paths)
        self.name = paths[0].resolve().name if self.run or len(paths) == 1 else f"{len(paths)} files"
        self.entries: list[dict[str, Any]] = []
        self.places: list[RecordLocation] = []
        self.metrics: list[list[Any]] = []
        self.vocabulary: list[list[Any]] = []
        self._steps = steps
        self._damaged: list[dict[str, Any]] = []
        self._files = {path: _File(path, label) for path, label in _labelled([] if self.run else paths)}
        self._counts: dict[tuple[str, int], int] = {}
        self._known: set[int] = set()
        self._pending: set[int] = set()
        folders = [self.run / "model", self.run / "start"] if self.run else []
        self._pieces = Pieces(folders, self._model_name())

    def news(self, settled: bool = True) -> Iterator[Record]:
        """Read the lines added since the last call. Yield each record after its entry was appended to `entries`.

        If `settled` is False, a last line without a newline is left for the next call, unless the file has not changed
        for 5 seconds.
        """
        self.read_metrics(settled)
        for file in self._episode_files():
            for line, place in _new_lines(file, settled):
                try:
                    record = from_line(line)
                except (ValueError, RecursionError) as error:
                    self._damage(file, file.line, str(error))
                    continue
                if self._add(record, file, place):
                    yield record
        self._name_tokens()

    def require_something(self) -> None:
        """Raise `UsageError` if files were read to their end without an episode. A run without episodes is allowed."""
        if self.run or self.entries:
            return
        why = " of the chosen steps" if self._steps is not None else ""
        for defect in self.defects()[:1]:
            location = f"{defect['file']}, line {defect['line']}: " if defect["line"] else ""
            why = f"; {location}{defect['reason']}"
        raise UsageError(f"no line of {self.name} is an episode{why}; pass episode files (.jsonl), or a run's folder")

    def was_replaced(self) -> bool:
        """Return whether a file was replaced or became shorter since it was read, because its run was started again."""
        return any(_replaced(file) for file in self._files.values() if file.inode)

    def defects(self) -> list[dict[str, Any]]:
        """Return the lines and files that could not be read."""
        faults = [(self._shown(file.path), file.fault) for file in list(self._files.values())]
        faults.append(("tokenizer.json", self._pieces.fault))
        return self._damaged + [{"file": name, "line": None, "reason": fault} for name, fault in faults if fault]

    def settings(self) -> list[list[Any]]:
        """Return config.json and summary.json as [title, pairs]."""
        if not self.run:
            return []
        sections = []
        for name in ("config.json", "summary.json"):
            try:
                value = _settings(self.run / name)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError) as error:
                sections.append([name, [["cannot be read", str(error)]]])
                continue
            sections.append([name, pairs(value) if isinstance(value, dict) else [["", as_text(value)]]])
        return sections

    def state(
        self, episodes: int = 0, metrics: int = 0, vocabulary: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        """Return the data that a page lacks. The counts say what it has; `limit` is the most episodes (None: all)."""
        end = len(self.entries) if limit is None else min(len(self.entries), episodes + limit)
        return {
            "name": self.name,
            "live": False,
            "episodes": self.entries[episodes:end],
            "metrics": self.metrics[metrics:],
            "vocabulary": self.vocabulary[vocabulary:],
            "more": end < len(self.entries),
            "defects": self.defects(),
            "settings": self.settings(),
            "measured": measurements(self.run) if self.run else [],
        }

    def _episode_files(self) -> list[_File]:
        if not self.run:
            return list(self._files.values())
        episode_files = []
        for path in sorted((self.run / "episodes").glob("*.jsonl")):
            step = _STEP_FILE.fullmatch(path.stem)
            is_chosen = self._steps is None or step is None or int(step[1]) in self._steps
            if is_chosen and path.is_file():
                episode_files.append(self._files.setdefault(path, _File(path, path.stem)))
        return episode_files

    def _damage(self, file: _File, line: int, reason: str) -> None:
        self._damaged.append({"file": self._shown(file.path), "line": line, "reason": reason})

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self.run)) if self.run else str(path)

    def _add(self, record: Record, file: _File, place: RecordLocation) -> bool:
        row = entry(record)
        step_name = _STEP_FILE.fullmatch(file.path.stem)
        if row["step"] is None and step_name and self.run:
            row["step"] = int(step_name[1])
        if self._steps is not None and row["step"] not in self._steps:
            return False
        stage = file.label if row["step"] is None else str(row["step"])
        if not self.run and row["step"] is not None and len(self._files) > 1:
            stage = f"{file.label}, step {row['step']}"
        count = self._counts[stage, row["group"]] = self._counts.get((stage, row["group"]), 0) + 1
        row |= {"stage": stage, "ordinal": count, "file": self._shown(file.path), "line": file.line}
        self.places.append(place)  # Appended first, so that every visible entry can be opened.
        self.entries.append(row)
        for tokens in record.episode.rows:
            self._pending.update(tokens.ids.tolist())
        self._pending -= self._known
        return True

    def _name_tokens(self) -> None:
        texts = self._pieces.texts(sorted(self._pending)) if self._pending else None
        if texts is not None:
            self.vocabulary += [[token_id, text] for token_id, text in texts.items()]
            self._known |= self._pending
            self._pending = set()

    def read_metrics(self, settled: bool = True) -> None:
        """Read the lines of metrics that were added since the last call."""
        if not self.run:
            return
        path = self.run / "metrics.jsonl"
        if path.exists() and not path.is_file():  # A pipe never ends.
            return
        file = self._files.setdefault(path, _File(path, "metrics"))
        for line, _ in _new_lines(file, settled):
            try:
                line_metrics = json.loads(line)
                step = line_metrics["step"]
                if not isinstance(step, int) or isinstance(step, bool):
                    raise ValueError("its step is no integer")
            except (ValueError, RecursionError, KeyError, TypeError) as error:
                self._damage(file, file.line, f"it is no line of metrics: {type(error).__name__}: {error}"[:300])
                continue
            del line_metrics["step"]
            self.metrics.append([step, numbers({k: v for k, v in line_metrics.items() if isinstance(v, int | float)})])

    def _model_name(self) -> str:
        if not self.run:
            return ""
        try:
            name = _settings(self.run / "config.json").get("model")
        except (OSError, ValueError, RecursionError, AttributeError):
            return ""
        return name if isinstance(name, str) and name != "tiny" else ""


def _settings(path: Path) -> Any:
    if path.stat().st_size > _LONGEST_SETTINGS:
        raise ValueError(f"it has {path.stat().st_size:,} bytes; at most {_LONGEST_SETTINGS:,} are shown")
    return parsed_json(regular_text(path))


def _new_lines(file: _File, settled: bool) -> Iterator[tuple[bytes, RecordLocation]]:
    """Yield the lines that were not read before. `file.line` is the number of the yielded line."""
    try:
        with file.path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            file.inode, file.fault = status.st_ino, ""
            settled = settled or time.time() - status.st_mtime > _SETTLED_SECONDS
            opened.seek(file.offset)
            for line in opened:
                if not line.endswith(b"\n") and not settled:
                    return
                place = RecordLocation(file.path, file.offset, len(line))
                file.offset += len(line)
                file.line += 1
                if line.strip():
                    yield line, place
    except FileNotFoundError:
        return
    except OSError as error:
        file.fault = f"it cannot be read: {error.strerror or error}"


def _replaced(file: _File) -> bool:
    try:
        status = file.path.stat()
    except OSError:
        return True
    return status.st_ino != file.inode or status.st_size < file.offset


def _checked(paths: Sequence[Path]) -> Path | None:
    """Return the run's folder, or None if the paths are files. Raise `UsageError` for other paths."""
    for path in paths:
        if not path.exists():
            raise UsageError(f"there is no {str(path)!r}; pass a run's folder, or episode files (.jsonl)")
    folders = [path for path in paths if path.is_dir()]
    if not paths or (folders and len(paths) > 1):
        raise UsageError("pass runs' folders alone, or one or more episode files (.jsonl)")
    if not folders:
        if unusual := [str(path) for path in paths if not path.is_file()]:
            raise UsageError(f"{unusual[0]!r} is no ordinary file; write it to one first")
        return None
    if not any((folders[0] / mark).exists() for mark in _MARKS):
        raise UsageError(f"{str(folders[0])!r} holds no run; expected one of {', '.join(_MARKS)} in it")
    return folders[0]


def _labelled(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each file once with its label: the name without suffix, with a number if the name repeats."""
    name_counts: dict[str, int] = {}
    for path in dict.fromkeys(paths):
        name_counts[path.stem] = name_counts.get(path.stem, 0) + 1
        yield path, path.stem if name_counts[path.stem] == 1 else f"{path.stem} ({name_counts[path.stem]})"
