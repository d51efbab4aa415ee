"""Search and browsing against their targets: `make bench-web`

Search through the tool at 100,000 and a million passages, and known items of a real documentation; the text browser's
actions, its memory and its longest pages; an action of the real browser beside a raw click, and many contexts at once.
Each part (`on_web`) runs in turn, prints its figures and is written down. Exit status 1 when a target is missed.
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
    """Search, the text browser and the real browser."""

    parts: tuple[Part, ...] = ("search", "text_browser", "chromium")
    """What is measured."""
    targets: bool = True
    """Fail when a target is missed."""
    out: Path = Path(__file__).resolve().parent / "results" / "web.json"
    """Where the figures go."""


def main() -> int:
    """Measure, print and write down."""
    options = tyro.cli(Options, description=__doc__)
    report, found, targets = Report(options), dict[str, Any](), list[dict[str, Any]]()
    for part in options.parts:
        found[part], judged = import_module(f"on_web.{part}").measure()
        print(f"{part}\n{laid_out(found[part])}", flush=True)
        targets += judged
        report.write(found, targets)
    return report.conclude(found, targets)


if __name__ == "__main__":
    sys.exit(main())
