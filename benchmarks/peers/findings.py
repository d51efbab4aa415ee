"""Shared code of all benchmarks: start sides, compare figures with targets, show and write the results."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peers.sides import ANSWER_SECONDS, Figures, Lost, Measured, Side

from palaestra.trainers.run.versions import versions

WIDTH = 200
"""Maximum characters of a value that is written on one line of JSON."""
LIMITS = (("most", "at most"), ("least", "at least"))


def start_sides(
    names: Sequence[str],
    ours: Sequence[str],
    drivers: Path,
    ending: str,
    installed: Path,
    stack: ExitStack,
    seconds: float = ANSWER_SECONDS,
) -> tuple[dict[str, Side], dict[str, str]]:
    """Start the sides. Return those that can be measured, and the reasons why the others cannot. The sides in `ours`
    run with this Python and must start.
    """
    sides: dict[str, Side] = {}
    missing: dict[str, str] = {}
    for name in names:
        python = Path(sys.executable) if name in ours else installed / name / "bin" / "python"
        if not python.exists():
            reason = installed / f"{name}.reason"
            missing[name] = reason.read_text().strip() if reason.is_file() else "not installed; run scripts/peers.py"
            continue
        try:
            sides[name] = Side(name, python, drivers / f"{name}_{ending}.py", seconds)
            stack.callback(sides[name].close)
        except Lost as error:
            if name in ours:
                raise
            missing[name] = str(error)
    return sides, missing


def target(name: str, found: float | None, *, most: float | None = None, least: float | None = None) -> dict[str, Any]:
    """Return a figure with its target. A figure that is missing counts as a missed target; without a target nothing is
    missed.
    """
    free = most is None and least is None
    met = found is not None and (most is None or found <= most) and (least is None or found >= least)
    return {"name": name, "found": found, "most": most, "least": least, "met": free or met}


def show(title: str, found: Measured, columns: Mapping[str, Callable[[Figures], str]]) -> None:
    """Print the rows of one case."""
    print(f"\n{title}\n  {'':<34}" + "".join(f"{name:>15}" for name in columns))
    for (name, way), figures in found.items():
        cells = "".join(f"{cell(figures):>15}" for cell in columns.values()) if not figures.lost else ""
        print(f"  {f'{name}, {way}':<34}{cells or f' not measured: {figures.lost}'}", flush=True)


def brief(found: Measured, cpu: str) -> dict[str, Any]:
    """Return the medians for JSON, with the CPU figures of each round."""
    rows: dict[str, Any] = {}
    for (name, way), figures in found.items():
        keys = figures.rounds[0] if figures.rounds else {}
        medians = {key: float(f"{figures.median(key):.4g}") for key in keys}
        rounds = {f"{cpu}_rounds": [round(one[cpu], 2) for one in figures.rounds]} if cpu in keys else {}
        rows[f"{name}, {way}"] = medians | rounds | ({"lost": figures.lost} if figures.lost else {})
    return rows


def laid_out(value: Any, margin: str = "\n") -> str:
    """Return JSON in which no line is long."""
    text = json.dumps(value)
    if len(text) + len(margin) <= WIDTH or not isinstance(value, Mapping | list | tuple):
        return text
    inner = f"{margin}  "
    if isinstance(value, Mapping):
        rows = [f"{json.dumps(str(key))}: {laid_out(one, inner)}" for key, one in value.items()]
        return "{" + inner + f",{inner}".join(rows) + margin + "}"
    return "[" + inner + f",{inner}".join(laid_out(one, inner) for one in value) + margin + "]"


@dataclass(frozen=True)
class Report:
    """Results of a benchmark. Create it before the measurement; `conclude` prints the targets and writes the file."""

    options: Any
    """A dataclass with `out`, the file for the figures; if its `targets` is False, no target can fail."""
    load: tuple[float, float, float] = field(default_factory=os.getloadavg)
    began: float = field(default_factory=time.monotonic)

    def conclude(
        self,
        found: Mapping[str, Any],
        targets: Sequence[Mapping[str, Any]] = (),
        missing: Mapping[str, str] | None = None,
        sides: Mapping[str, Side] | None = None,
    ) -> int:
        """Print the targets and write the file. Return the exit status: 1 when a target is missed."""
        for one in targets:
            value = "not measured" if one["found"] is None else f"{one['found']:.3g}"
            limits = [f"{word} {one[key]:.3g}" for key, word in LIMITS if one[key] is not None]
            verdict = "figure" if not limits else "met   " if one["met"] else "MISSED"
            print(f"{verdict} {one['name']}: {value}" + "".join(f" ({limit})" for limit in limits))
        for name, reason in (missing or {}).items():
            print(f"{name} was not measured: {reason}")
        self.write(found, targets, missing, sides)
        missed = not all(one["met"] for one in targets)
        return 1 if missed and getattr(self.options, "targets", True) else 0

    def write(
        self,
        found: Mapping[str, Any],
        targets: Sequence[Mapping[str, Any]] = (),
        missing: Mapping[str, str] | None = None,
        sides: Mapping[str, Side] | None = None,
    ) -> None:
        """Write the results so far; may be called again with more."""
        record = {
            "targets": targets,
            **found,
            "missing": missing or {},
            "seconds": round(time.monotonic() - self.began),
            # Files by their names alone: where they lie says nothing to others.
            "options": {key: getattr(value, "name", value) for key, value in asdict(self.options).items()},
            "versions": versions() | {name: side.versions for name, side in (sides or {}).items()},
            "load": {"before": self.load, "after": os.getloadavg(), "cores": os.cpu_count()},
            "date": datetime.now(UTC).date().isoformat(),
        }
        self.options.out.parent.mkdir(parents=True, exist_ok=True)
        self.options.out.write_text(laid_out(record) + "\n", encoding="utf-8")
