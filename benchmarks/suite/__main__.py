"""Measure the success of agents in every environment of the suite, and write the page: `make results`

There is one file for each environment in results/suite, and one for each run with GRPO in results/suite/runs. A file
with the same settings and prompts, or of the same command, is kept, so the measurement can be stopped and resumed.
`--write-only` only writes the page from these files. Models run in float32 on one thread, with short turns.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tyro
from cases import CASES
from page import write_page
from smollm2 import measure, settings_of
from training_runs import RUNS, play_run

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Options:
    """Measure what is missing, and write the page again."""

    only: tuple[str, ...] = ()
    """Environments or runs to measure, by name; by default all."""
    write_only: bool = False
    """Only write the page."""
    results: Path = field(default=ROOT / "benchmarks" / "results" / "suite")
    """Folder for the figures, with a file for each environment and run."""
    episodes: Path = field(default=ROOT / "runs" / "suite")
    """Folder for the episodes, which `palaestra view` shows."""
    page: Path = field(default=ROOT / "docs" / "results.md")
    """Page whose tables are written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write each file at once, and write the page."""
    options = tyro.cli(Options, args=arguments)
    for case in () if options.write_only else CASES:
        path = options.results / f"{case.name}.json"
        if _wanted(case.name, options) and _kept(path, "settings") != (settings := settings_of(case)):
            _save(path, {"settings": settings, **measure(case, options.episodes)})
    for run in () if options.write_only else RUNS:
        path = options.results / "runs" / f"{run.name}.json"
        if _wanted(run.name, options) and _kept(path, "command") != run.command:
            _save(path, play_run(run, options.episodes))
    write_page(options.page, options.results)
    return 0


def _wanted(name: str, options: Options) -> bool:
    if options.only and name not in options.only:
        return False
    print(f"{datetime.now(UTC):%H:%M:%S} {name}", flush=True)
    return True


def _kept(path: Path, key: str) -> Any:
    return json.loads(path.read_text("utf-8"))[key] if path.is_file() else None


def _save(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
