"""Send the metrics of a run to its trackers during the run: each step once, even if the run is killed and resumed.

The complete lines of the run's own files are sent. RUN/tracking.json holds the last step that each tracker received.
So a step that is repeated after a kill is not sent again, a step that was not sent before a kill is sent later, and a
tracker that is added later receives all steps. A tracker that fails is closed with a note, and the run continues
without it.

No data leaves this computer unless the library's own environment variable asks for it: WANDB_MODE=online,
TRACKIO_SPACE_ID.
"""

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from palaestra.errors import MissingExtra, UsageError
from palaestra.trainers.run.atomic_files import write_text
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.json_files import parse_steps, read_object
from palaestra.trainers.run.progress import OnProgress, Progress
from palaestra.trainers.validation import flat, plain

_STEPS, _EVALS = "metrics.jsonl", "measured.jsonl"
_PROJECT = "palaestra"


class Tracker(Protocol):
    """Interface to the record that one library keeps of one run. Its methods may raise any exception."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add the metrics of a step."""

    def close(self) -> None:
        """Write all pending data and close the record."""


class _Wandb:
    """Writes offline to RUN/wandb unless WANDB_MODE says otherwise; `wandb sync` uploads it later."""

    def __init__(self, folder: Path, identity: str, config: Mapping[str, Any]) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.resolve().name,
            id=identity,
            dir=str(folder),
            config=dict(config),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=wandb.Settings(silent=True, console="off", finish_timeout=60.0),
        )
        # wandb's own step counter only rises, so it would drop what a resumed run adds to its last step.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """Writes to trackio's own folder on this machine (TRACKIO_DIR), where `trackio show` looks for it."""

    def __init__(self, folder: Path, identity: str, config: Mapping[str, Any]) -> None:
        import trackio

        name = f"{folder.resolve().name}-{identity}"  # trackio identifies a run by its name alone.
        quiet: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(project=_PROJECT, name=name, config=dict(config), resume="allow", **quiet)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        import trackio

        with redirect_stdout(sys.stderr):
            trackio.finish()  # type: ignore[no-untyped-call]  # The run's own `finish` would be called again, and print again, when Python ends.


class _TensorBoard:
    """Writes to RUN/tensorboard."""

    def __init__(self, folder: Path, identity: str, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # A kill would lose what is not on disk.

    def close(self) -> None:
        self._writer.close()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "wandb": _Wandb,
    "trackio": _Trackio,
    "tensorboard": _TensorBoard,
}
"""Trackers by name, created from the run's folder, a permanent identity of the run, and its config."""


def require_trackers(names: tuple[str, ...]) -> None:
    """Raise `MissingExtra` for a tracker whose library is not installed. Tracker, library and extra share one name."""
    for name in names:
        if find_spec(name) is None:
            raise MissingExtra(name, name, f"--track {name}")


class Trackers:
    """The open trackers of a run; a context manager. There may be none."""

    def __init__(self, run: Run, on_progress: OnProgress) -> None:
        """Open each tracker that the run's config names. Raise an error if one cannot be opened."""
        self._run, self._on_progress, self._path = run, on_progress, run.folder / "tracking.json"
        names = tuple(dict.fromkeys(run.config.track)) if run.writes else ()
        require_trackers(names)
        self._offsets = {_STEPS: 0, _EVALS: 0}
        """Number of bytes of each file that were sent."""
        self._sent: dict[str, Any] = {"identity": secrets.token_hex(4), **(read_object(self._path) or {})}
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
        lines = [(_STEPS, line["step"], line) for line in self._new_lines(_STEPS)]
        lines += [(_EVALS, line["step"], _evaluation(line)) for line in self._new_lines(_EVALS)]
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

    def _new_lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines that were added to a file since the last call. Only this process may write the file."""
        path = self._run.folder / name
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(self._offsets[name])
            content = file.read()
        self._offsets[name] += len(content)
        return parse_steps(content.decode(errors="replace"))

    def _ends(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the evaluation before the first step, if a tracker lacks it, and the evaluation after the last step."""
        least = min(self._sent[name][_EVALS] for name in self._open)
        if least < 0 and (before := self._run.before):
            yield 0, before.get("sampled", {})
        if after := self._run.summary.get("after"):
            yield self._run.metrics[-1]["step"], after.get("sampled", {})


def _evaluation(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {f"eval/{name}": value for name, value in metrics.items() if name != "step"}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if isinstance(value, int | float) and name != "step"}
