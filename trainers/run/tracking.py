"""Send the metrics of a run to its trackers during the run: each step once, even if the run is killed and resumed.

The lines of the run's own files are sent, up to the last whole step. RUN/tracking.json holds the last step that each
tracker received. So a step that is repeated after a kill is not sent again, a step that was not sent before a kill is
sent later, and a tracker that is added later receives all steps. A tracker that fails is closed with a note, and the
run continues without it.
"""

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from palaestra.errors import UsageError
from palaestra.reading import parsed_json, regular_text
from palaestra.trainers.run.atomic_files import write_text
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.progress import OnProgress, Progress
from palaestra.trainers.run.trackers import TRACKERS, Tracker, require_trackers
from palaestra.trainers.validation import flat, plain

_STEPS, _EVALS = "metrics.jsonl", "measured.jsonl"


class Trackers:
    """The open trackers of a run; a context manager. There may be none."""

    def __init__(self, run: Run, on_progress: OnProgress) -> None:
        """Open each tracker that the run's config names. An error here comes before any training."""
        self._run, self._on_progress, self._path = run, on_progress, run.folder / "tracking.json"
        names = tuple(dict.fromkeys(run.config.track)) if run.writes else ()
        require_trackers(names)
        self._files = {name: _NewLines(run.folder / name) for name in (_STEPS, _EVALS)}
        self._sent: dict[str, Any] = {"identity": secrets.token_hex(4)}
        with suppress(OSError, ValueError):
            self._sent |= parsed_json(regular_text(self._path))
        self._open: dict[str, Tracker] = {}
        for name in names:
            self._sent.setdefault(name, {_STEPS: 0, _EVALS: -1})
            try:
                config = flat(plain(run.config))
                self._open[name] = TRACKERS[name](run.folder, self._sent["identity"], config)
            except Exception as error:
                self.close()
                raise UsageError(f"--track {name}: it cannot be opened: {type(error).__name__}: {error}") from error

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def send(self) -> None:
        """Send new lines of the run's files. A tracker that fails is reported in a note and not used again."""
        if not self._open:
            return
        lines = [(_STEPS, line["step"], line) for line in self._files[_STEPS].read()]
        lines += [(_EVALS, line["step"], _evaluation(line)) for line in self._files[_EVALS].read()]
        lines += [(_EVALS, step, _evaluation(metrics)) for step, metrics in self._ends()]
        if not lines:
            return
        for name, tracker in list(self._open.items()):
            last = self._sent[name]
            try:
                for kind, step, metrics in lines:
                    if step > last[kind]:
                        tracker.log(step, _numbers(metrics))
                        last[kind] = step
            except Exception as error:
                del self._open[name]
                with suppress(Exception):
                    tracker.close()
                note = f"{name} failed and gets no more of this run ({type(error).__name__}: {error}); the run goes on"
                self._on_progress(Progress("tracking", 0, 0, note=note))
        write_text(self._path, json.dumps(self._sent, indent=2) + "\n")

    def close(self) -> None:
        """Close the trackers; an error of one of them is ignored."""
        for tracker in self._open.values():
            with suppress(Exception):
                tracker.close()

    def _ends(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the evaluations before the first step and after the last that a tracker has not received."""
        least = min(self._sent[name][_EVALS] for name in self._open)
        if least < 0 and (before := self._run.before):
            yield 0, before.get("sampled", {})
        if after := self._run.summary.get("after"):
            yield self._run.metrics[-1]["step"], after.get("sampled", {})


class _NewLines:
    """Reads the lines that were added to a file since the last read; all lines if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._inode = path, 0, 0

    def read(self) -> list[dict[str, Any]]:
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
        lines = []
        for line in whole.splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict) and isinstance(line.get("step"), int)]


def _evaluation(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {f"eval/{name}": value for name, value in metrics.items() if name != "step"}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "step"}
