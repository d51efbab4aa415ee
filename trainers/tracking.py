"""Telling trackers the figures of a run as it goes, so that a run which goes on is told once and whole.

What is told are the lines of the run's own files, up to the step that is done; RUN/tracking.json says for each tracker
how far it has been told. So a step that happens again after a kill is not told again, one that a kill kept from a
tracker is told late, and a tracker that is asked for later hears all of it. A tracker that fails is given up with a
note: the run is worth more than its picture.
"""

import json
import secrets
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from palaestra.errors import UsageError
from palaestra.trainers.checked import flat, plain
from palaestra.trainers.durable import write_text
from palaestra.trainers.progress import Progress
from palaestra.trainers.run import Run
from palaestra.trainers.trackers import TRACKERS, Tracker, require_trackers

_STEPS, _EVALS = "metrics.jsonl", "measured.jsonl"


def tracked(run: Run, stage: Generator[Progress, None, None]) -> Generator[Progress, None, None]:
    """Let a stage of a run go on, telling its trackers each step; from then on whatever they do, the stage goes on."""
    names = tuple(dict.fromkeys(run.config.track)) if run.writes else ()
    require_trackers(names)
    telling = _Telling(run, names) if names else None
    try:
        with closing(stage):
            for progress in stage:
                yield progress
                for note in telling.tell() if telling else ():
                    yield Progress(progress.stage, progress.step, progress.total, note=note)
        for note in telling.tell() if telling else ():
            yield Progress("tracking", 0, 0, note=note)
    finally:
        if telling:
            telling.close()


class _Telling:
    """The trackers of a run that still listen, and how far each has been told."""

    def __init__(self, run: Run, names: tuple[str, ...]) -> None:
        self._run, self._path = run, run.folder / "tracking.json"
        self._news = {name: _News(run.folder / name) for name in (_STEPS, _EVALS)}
        self._told: dict[str, Any] = {"identity": secrets.token_hex(4)}
        with suppress(OSError, ValueError):
            self._told |= json.loads(self._path.read_text(encoding="utf-8"))
        self._open: dict[str, Tracker] = {}
        for name in names:
            self._told.setdefault(name, {_STEPS: 0, _EVALS: -1})
            try:
                config = flat(plain(run.config))
                self._open[name] = TRACKERS[name](run.folder, self._told["identity"], config)
            except Exception as error:  # Before anything was made: whoever asked for it has time to repair it.
                self.close()
                raise UsageError(f"--track {name}: it cannot be opened: {type(error).__name__}: {error}") from error

    def tell(self) -> Iterator[str]:
        """Tell what is new; yields a note of each tracker that failed, which hears no more."""
        lines = [(_STEPS, line["step"], line) for line in self._news[_STEPS].lines()]
        lines += [(_EVALS, line["step"], _evaluation(line)) for line in self._news[_EVALS].lines()]
        lines += [(_EVALS, step, _evaluation(figures)) for step, figures in self._ends()]
        if not lines:
            return
        for name, tracker in list(self._open.items()):
            told = self._told[name]
            try:
                for kind, step, figures in lines:
                    if step > told[kind]:
                        tracker.log(step, _numbers(figures))
                        told[kind] = step
            except Exception as error:
                del self._open[name]
                with suppress(Exception):
                    tracker.close()
                yield f"{name} failed and hears no more of this run ({type(error).__name__}: {error}); the run goes on"
        write_text(self._path, json.dumps(self._told, indent=2) + "\n")

    def close(self) -> None:
        """Close the trackers; what one of them cannot write any more is lost to it alone."""
        for tracker in self._open.values():
            with suppress(Exception):
                tracker.close()

    def _ends(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """What was measured before the first step and after the last, as far as somebody has still to hear of it."""
        least = min((self._told[name][_EVALS] for name in self._open), default=0)
        if least < 0 and (before := self._run.before):
            yield 0, before.get("sampled", {})
        if after := self._run.summary.get("after"):
            yield self._run.metrics[-1]["step"], after.get("sampled", {})


class _News:
    """The lines that a file got since they were last asked for; all of them where it was written anew."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._inode = path, 0, 0

    def lines(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                whole = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        self._offset += len(whole) + 1 if whole else 0
        found = []
        for line in whole.splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict) and isinstance(line.get("step"), int)]


def _evaluation(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {f"eval/{name}": value for name, value in figures.items() if name != "step"}


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if isinstance(value, int | float) and name != "step"}
