"""What the environments cost here, by what they cost in another checkout: `make bench-envs BESIDE=FOLDER`

Both run by this Python with the same libraries; only the folder that `palaestra` is imported from differs. Each round
starts a process of either, so that what a process happens to be (its addresses, its hashes) is drawn anew, and asks
them in turn, in the other order in every second round. A figure is the median over rounds of the ratios within a round,
here by there, with its 95 % interval by order statistics, which supposes nothing about how ratios are spread.

A bound is missed where the median is beyond 5 % and so is the whole interval; exit status 1 then. Where the interval
reaches back inside, the row says `open`: more rounds can tell. What has no bound is a figure. Bytes and hops are exact.

Left out: other suites (`envs`), and programs in the sandbox by themselves (`sandbox`).
"""

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import comb
from pathlib import Path
from typing import Annotated, Any

import tyro
from peers.findings import Report
from peers.sides import Lost, Side

HERE = Path(__file__).resolve().parent
DRIVER = HERE / "peers" / "palaestra_side.py"
BOUND = 1.05
"""Most that a ratio may be, or its inverse where more is better."""
TAIL = 0.025
"""Chance that the median lies beyond one end of an interval."""


@dataclass(frozen=True)
class Options:
    """The environments of this checkout beside those of another."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The other checkout."""
    rounds: int = 20
    """Pairs of processes; below 6 there is no interval."""
    seconds: float = 0.3
    """Least length of one measurement."""
    slots: tuple[int, ...] = (1, 64, 256)
    """Environments at once, tools that only compute."""
    waiting: tuple[int, ...] = (256, 1024)
    """Environments at once whose tool waits 50 ms; the first also with a tool that blocks."""
    held: int = 1024
    """Environments that are weighed."""
    calls: int = 44
    """Calls in the sandbox; 0 leaves them out."""
    targets: bool = True
    """Fail when a bound is missed."""
    out: Path = HERE / "results" / "beside.json"
    """Where the figures go."""


@dataclass(frozen=True)
class Figure:
    """One row: what is asked of both, and which number of the answer is compared."""

    name: str
    key: str
    verb: str
    asked: tuple[tuple[str, Any], ...] = ()
    more: bool = False
    """More is better."""
    bound: bool = True


def figures(options: Options) -> list[Figure]:
    """The rows of the table."""

    def play(way: str, envs: int, latency: float = 0.0) -> tuple[tuple[str, Any], ...]:
        return (("way", way), ("envs", envs), ("latency", latency), ("seconds", options.seconds))

    rows = [
        Figure(f"CPU us a step, {slots} at once", "cpu_us", "play", play("two-hop", slots)) for slots in options.slots
    ]
    rows.append(Figure("CPU us a step, by hand", "cpu_us", "play", play("by hand", 16)))
    ways = [("async free", slots) for slots in options.waiting] + [("blocking free", options.waiting[0])]
    for way, slots in ways:
        name, asked = f"{way.removesuffix(' free')} tool of 50 ms, {slots} at once", play(way, slots, 0.05)
        rows.append(Figure(f"calls in flight, {name}", "in_flight", "play", asked, more=True))
        rows.append(Figure(f"CPU us a step, {name}", "cpu_us", "play", asked, bound=False))
    for key, name in (("made", "idle"), ("running", "after one turn"), ("over", "its episode over")):
        asked = (("envs", options.held),)
        rows.append(Figure(f"bytes of an environment, {name}", key, "memory", asked, bound=key == "made"))
    if options.calls:
        rows.append(Figure("ms of a call in the sandbox", "wall_ms", "sandboxed", (("calls", options.calls),)))
    for key in ("call", "answer"):
        rows.append(Figure(f"Python calls in a step, {key}", f"{key}_calls", "hops", bound=False))
        rows.append(Figure(f"files of ours in a step, {key}", f"{key}_files", "hops", bound=False))
    return rows


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Of the median: the order statistics between which it lies but for TAIL on either side; all where they are few."""
    ordered, tail, rank = sorted(values), 0.0, 0
    while (tail := tail + comb(len(ordered), rank) / 2 ** len(ordered)) <= TAIL:
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[-rank]


def judge(row: Figure, here: Sequence[float], there: Sequence[float]) -> dict[str, Any]:
    """The ratio here by there, round by round, and what it says of the bound."""
    ratios = [one / other for one, other in zip(here, there, strict=True)]
    ratio, (low, high) = statistics.median(ratios), interval(ratios)
    beyond = ratio < 1 / BOUND if row.more else ratio > BOUND
    sure = high < 1 / BOUND if row.more else low > BOUND
    verdict = "figure" if not row.bound else "MISSED" if beyond and sure else "open" if beyond else "met"
    return {
        "name": row.name,
        "there": statistics.median(there),
        "here": statistics.median(here),
        "ratio": ratio,
        "interval": [low, high],
        "verdict": verdict,
        "met": verdict != "MISSED",
        "ratios": [round(one, 4) for one in ratios],
    }


def measure(folders: Mapping[str, Path], rows: Sequence[Figure], rounds: int) -> dict[str, dict[Figure, list[float]]]:
    """Every row, by the name of a checkout and round."""
    found: dict[str, dict[Figure, list[float]]] = {name: {row: [] for row in rows} for name in folders}
    asked = dict.fromkeys((row.verb, row.asked) for row in rows)
    for number in range(rounds):
        with ExitStack() as stack:
            sides = []
            for name, folder in folders.items():
                sides.append(Side(name, Path(sys.executable), DRIVER, code=folder))
                stack.callback(sides[-1].close)
                checkout: Any = sides[-1].ask("where")["checkout"]
                if checkout != str(folder):
                    raise Lost(f"{name}: palaestra came from {checkout}; expected {folder}")
            for (verb, details), side in product(asked, sides[:: 1 if number % 2 else -1]):
                answer = side.ask(verb, **dict(details))
                side.ask("forget")
                for row in rows:
                    if (row.verb, row.asked) == (verb, details):
                        found[side.name][row].append(answer[row.key])
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def commit(folder: Path) -> str:
    """What is checked out there, and whether it was changed since."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "no repository"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    options = tyro.cli(Options, args=arguments)
    report, rows = Report(options), figures(options)
    folders = {"here": HERE.parent, "there": options.folder.resolve()}
    if not (folders["there"] / "palaestra" / "__init__.py").is_file():
        print(f"{options.folder} holds no palaestra; expected the folder of a checkout", file=sys.stderr)
        return 2
    try:
        found = measure(folders, rows, options.rounds)
    except Lost as error:
        print(f"one of the two cannot be measured: {error}", file=sys.stderr)
        return 1
    judged = [judge(row, found["here"][row], found["there"][row]) for row in rows]
    print(f"{'':<58}{'there':>10}{'here':>10}{'ratio':>8}   95 % interval")
    for one in judged:
        low, high = one["interval"]
        cells = f"{one['there']:>10.4g}{one['here']:>10.4g}{one['ratio']:>8.3f}   {low:.3f} to {high:.3f}"
        print(f"{one['verdict']:<7}{one['name']:<51}{cells}")
    status = report.conclude({"figures": judged, "commits": {name: commit(folder) for name, folder in folders.items()}})
    return max(status, int(options.targets and not all(one["met"] for one in judged)))


if __name__ == "__main__":
    sys.exit(main())
