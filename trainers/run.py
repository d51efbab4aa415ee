"""A run's folder: what was asked, what happened at each step, what came of it.

config.json     the resolved config
metrics.jsonl   one line a step
summary.json    the figures at the end, with seed, versions, wall and CPU seconds
model/          safetensors, tokenizer and template
"""

import json
import os
import platform
import resource
import time
from collections.abc import Generator, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from palaestra.errors import UsageError
from palaestra.trainers.progress import Progress

_LIBRARIES = ("palaestra", "torch", "transformers", "tokenizers", "gymnasium", "numpy")


class Run:
    """One folder, opened once; an existing one with a run in it is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "metrics.jsonl").open("x").close()
        except FileExistsError as error:
            raise UsageError(f"{folder} already holds a run; choose another folder or remove it") from error
        except OSError as error:
            raise UsageError(f"the run folder {folder} cannot be made: {error}") from error
        self._began = time.perf_counter()

    def recorded(self, stage: Iterator[Progress]) -> Generator[Progress, None, list[float]]:
        """Pass a training stage on, writing each step to metrics.jsonl; returns the success of each step's episodes."""
        curve = []
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as metrics:
            for progress in stage:
                curve.append(progress.metrics["rewards/success/mean"])
                metrics.write(json.dumps({"step": progress.step, **progress.metrics}) + "\n")
                metrics.flush()
                yield progress
        return curve

    def finish(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write summary.json, whole or not at all; returns what was written."""
        summary = {
            **figures,
            "wall_seconds": round(time.perf_counter() - self._began, 1),
            "cpu_seconds": round(cpu_seconds(), 1),
            "versions": versions(),
        }
        unfinished = self.folder / "summary.json.part"
        unfinished.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        os.replace(unfinished, self.folder / "summary.json")
        return summary


def fresh_folder(name: str, root: Path = Path("runs")) -> Path:
    """`runs/NAME`, or the first of `runs/NAME-2`, `-3`, ... that is free."""
    folder, number = root / name, 2
    while folder.exists():
        folder, number = root / f"{name}-{number}", number + 1
    return folder


def cpu_seconds() -> float:
    """User and system time of this process and the children it has waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def versions() -> dict[str, str]:
    """What the figures were made with."""
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found
