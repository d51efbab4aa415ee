"""Measure search and browsing, and compare them with their targets: `make bench-web`

Search goes through the tool over 100,000 and a million passages, and looks for known pages of a real documentation. The
text browser's actions, memory and longest pages are measured, then the real browser: an action beside a raw click, and
many contexts at once. Each part (`on_web`) runs in turn, prints its figures and writes them to the file. Exit status 1
when a target is missed.
"""

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tyro
from peers.findings import Report, laid_out

Part = Literal["search", "text_browser", "chromium"]


@dataclass(frozen=True)
class Options:
    """Measure search, the text browser and the real browser."""

    parts: tuple[Part, ...] = ("search", "text_browser", "chromium")
    """Parts that are measured."""
    targets: bool = True
    """Exit with status 1 if a target is missed."""
    out: Path = Path(__file__).resolve().parent / "results" / "web.json"
    """File for the figures."""


def main() -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, description=__doc__)
    report, figures, targets = Report(options), dict[str, Any](), list[dict[str, Any]]()
    for part in options.parts:
        figures[part], judged = import_module(f"on_web.{part}").measure()
        print(f"{part}\n{laid_out(figures[part])}", flush=True)
        targets += judged
        report.write(figures, targets)
    return report.conclude(figures, targets)


if __name__ == "__main__":
    sys.exit(main())
