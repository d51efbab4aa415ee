"""Send a run's metrics to wandb, trackio or TensorBoard, each library behind the same small interface.

Nothing leaves this machine unless the library's own variable says so: WANDB_MODE=online, TRACKIO_SPACE_ID. Not here:
which metrics are sent and when (`tracking`).
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from palaestra.errors import MissingExtra

_PROJECT = "palaestra"


class Tracker(Protocol):
    """One library's record of one run. Its methods may raise any exception."""

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
