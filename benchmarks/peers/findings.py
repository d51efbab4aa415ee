"""From sides to a verdict, for benchmarks beside peers: start them, judge targets, show and write what was found."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peers.sides import Lost, Measured, Side


def start_sides(
    names: Sequence[str], ours: Sequence[str], drivers: Path, ending: str, installed: Path, stack: ExitStack
) -> tuple[dict[str, Side], dict[str, str]]:
    """All sides that can be measured, and why the others cannot. Those in `ours` must be: they run by this Python."""
    sides: dict[str, Side] = {}
    missing: dict[str, str] = {}
    for name in names:
        python = Path(sys.executable) if name in ours else installed / name / "bin" / "python"
        if not python.exists():
            reason = installed / f"{name}.reason"
            missing[name] = reason.read_text().strip() if reason.is_file() else "not installed; run scripts/peers.py"
            continue
        try:
            sides[name] = Side(name, python, drivers / f"{name}_{ending}.py")
            stack.callback(sides[name].close)
        except Lost as error:
            if name in ours:
                raise
            missing[name] = str(error)
    return sides, missing


def target(name: str, found: float | None, *, most: float | None = None, least: float | None = None) -> dict[str, Any]:
    """What was found and what was wanted. A target that could not be judged is missed."""
    met = found is not None and (most is None or found <= most) and (least is None or found >= least)
    return {"name": name, "found": found, "most": most, "least": least, "met": met}


def show_targets(targets: Iterable[Mapping[str, Any]], missing: Mapping[str, str]) -> None:
    """A line for each, and for each peer that was not there."""
    for one in targets:
        found = "not measured" if one["found"] is None else f"{one['found']:.3g}"
        limit = f"at most {one['most']:.3g}" if one["most"] is not None else f"at least {one['least']:g}"
        print(f"{'met   ' if one['met'] else 'MISSED'} {one['name']}: {found} ({limit})")
    for name, reason in missing.items():
        print(f"{name} was not measured: {reason}")


def brief(found: Measured, cpu: str) -> dict[str, Any]:
    """For JSON: medians, and the rounds of CPU behind them."""
    rows: dict[str, Any] = {}
    for (name, way), figures in found.items():
        keys = figures.rounds[0] if figures.rounds else {}
        medians = {key: float(f"{figures.median(key):.4g}") for key in keys}
        rounds = {f"{cpu}_rounds": [round(one[cpu], 2) for one in figures.rounds]} if cpu in keys else {}
        rows[f"{name}, {way}"] = medians | rounds | ({"lost": figures.lost} if figures.lost else {})
    return rows


def write(out: Path, record: Mapping[str, Any], load: tuple[float, float, float]) -> None:
    """As JSON, with the date and what else the machine did."""
    around = {"load": {"before": load, "after": os.getloadavg(), "cores": os.cpu_count()}}
    out.parent.mkdir(parents=True, exist_ok=True)
    dated = {**record, **around, "date": datetime.now(UTC).date().isoformat()}
    out.write_text(json.dumps(dated, indent=2) + "\n", encoding="utf-8")
