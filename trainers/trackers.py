"""Where a run's figures go beside its folder: wandb, trackio, TensorBoard; each library behind the same small port.

Nothing leaves this machine unless the library's own variable says so: WANDB_MODE=online, TRACKIO_SPACE_ID. Left out:
what is told and when (`tracking`).
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
    """One library's record of one run. Its methods may raise whatever they like."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add figures of a step."""

    def close(self) -> None:
        """Hand over what is still to be written."""


class _Wandb:
    """Offline in RUN/wandb unless WANDB_MODE says otherwise; `wandb sync` sends it later."""

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
        # wandb's own count of steps only rises: what a run that goes on adds to its last step would be dropped.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """In trackio's own folder on this machine (TRACKIO_DIR), where `trackio show` looks for it."""

    def __init__(self, folder: Path, identity: str, config: Mapping[str, Any]) -> None:
        import trackio

        name = f"{folder.resolve().name}-{identity}"  # A run is found again by its name alone.
        quiet: dict[str, Any] = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        with redirect_stdout(sys.stderr):
            self._run = trackio.init(project=_PROJECT, name=name, config=dict(config), resume="allow", **quiet)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        import trackio

        with redirect_stdout(sys.stderr):
            trackio.finish()  # type: ignore[no-untyped-call]  # The run's own `finish` would be called again, and speak again, when Python ends.


class _TensorBoard:
    """In RUN/tensorboard."""

    def __init__(self, folder: Path, identity: str, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # A kill loses what is not on disk, and nobody writes it again.

    def close(self) -> None:
        self._writer.close()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "wandb": _Wandb,
    "trackio": _Trackio,
    "tensorboard": _TensorBoard,
}
"""By name: made of the run's folder, of an identity that stays the run's, and of its config."""


def require_trackers(names: tuple[str, ...]) -> None:
    """Refuse a tracker whose library is not installed; every name is also that of its library and its extra."""
    for name in names:
        if find_spec(name) is None:
            raise MissingExtra(name, name, f"--track {name}")
