"""Compare the cost of environments in this checkout with that in another one: `make bench-envs BESIDE=FOLDER`

The same Python with the same libraries runs both; only the folder that `palaestra` is imported from differs. Each round
starts a new process of each checkout, so that addresses and hashes are drawn anew, and measures the two in turn; every
second round reverses the order. A figure is the median over rounds of the ratio within a round, this checkout divided
by the other. Its 95 % interval is that of order statistics, which needs no assumption on the distribution of the
ratios. A bound is missed if the median and the whole interval are beyond 5 %; the exit status is then 1. If the
interval reaches inside the bound, the row says `open`, and more rounds can decide. Rows without a bound only report a
figure. Counts of bytes and calls are exact.

Left out: other suites (`envs`), and programs in the sandbox alone (`sandbox`).
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
"""Largest ratio, or largest inverse ratio if a higher figure is better."""
TAIL = 0.025
"""Probability that the median lies beyond one end of an interval."""


@dataclass(frozen=True)
class Options:
    """Compare the environments of this checkout with those of another."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of the other checkout."""
    rounds: int = 20
    """Number of pairs of processes; with fewer than 6 there is no interval."""
    seconds: float = 0.3
    """Minimum seconds of one measurement."""
    slots: tuple[int, ...] = (1, 64, 256)
    """Number of environments at once, with tools that only compute."""
    waiting: tuple[int, ...] = (256, 1024)
    """Number of environments at once whose tool waits 50 ms; for the first number also with a tool that blocks."""
    held: int = 1024
    """Number of environments whose memory is measured."""
    calls: int = 44
    """Number of calls in the sandbox; 0 leaves them out."""
    targets: bool = True
    """Exit with status 1 if a bound is missed."""
    out: Path = HERE / "results" / "beside.json"
    """File for the figures."""


@dataclass(frozen=True)
class Figure:
    """One row of the table: the measurement of both sides, and the number of its result that is compared."""

    name: str
    key: str
    verb: str
    arguments: tuple[tuple[str, Any], ...] = ()
    more: bool = False
    """True if a higher number is better."""
    bound: bool = True


def figures(options: Options) -> list[Figure]:
    """Return the rows of the table."""

    def play(way: str, envs: int, latency: float = 0.0) -> tuple[tuple[str, Any], ...]:
        return (("way", way), ("envs", envs), ("latency", latency), ("seconds", options.seconds))

    rows = [
        Figure(f"CPU us a step, {slots} at once", "cpu_us", "play", play("two-hop", slots)) for slots in options.slots
    ]
    rows.append(Figure("CPU us a step, by hand", "cpu_us", "play", play("by hand", 16)))
    ways = [("async free", slots) for slots in options.waiting] + [("blocking free", options.waiting[0])]
    for way, slots in ways:
        name, arguments = f"{way.removesuffix(' free')} tool of 50 ms, {slots} at once", play(way, slots, 0.05)
        rows.append(Figure(f"calls in flight, {name}", "in_flight", "play", arguments, more=True))
        rows.append(Figure(f"CPU us a step, {name}", "cpu_us", "play", arguments, bound=False))
    for key, name in (("made", "idle"), ("running", "after one turn"), ("over", "its episode over")):
        arguments = (("envs", options.held),)
        rows.append(Figure(f"bytes of an environment, {name}", key, "memory", arguments, bound=key == "made"))
    if options.calls:
        rows.append(Figure("ms of a call in the sandbox", "wall_ms", "sandboxed", (("calls", options.calls),)))
    for key in ("call", "answer"):
        rows.append(Figure(f"Python calls in a step, {key}", f"{key}_calls", "hops", bound=False))
        rows.append(Figure(f"files of ours in a step, {key}", f"{key}_files", "hops", bound=False))
    return rows


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median: the order statistics that it lies between, except with probability TAIL on
    each side. With few values, return the smallest and the largest.
    """
    ordered, tail, rank = sorted(values), 0.0, 0
    while (tail := tail + comb(len(ordered), rank) / 2 ** len(ordered)) <= TAIL:
        rank += 1
    rank = max(rank, 1)
    return ordered[rank - 1], ordered[-rank]


def judge(row: Figure, here: Sequence[float], there: Sequence[float]) -> dict[str, Any]:
    """Return the ratio of the two sides in each round, and whether the bound holds."""
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
    """Measure all rows. Return the results of each round by the name of the checkout."""
    values: dict[str, dict[Figure, list[float]]] = {name: {row: [] for row in rows} for name in folders}
    requests = dict.fromkeys((row.verb, row.arguments) for row in rows)
    for number in range(rounds):
        with ExitStack() as stack:
            sides = []
            for name, folder in folders.items():
                sides.append(Side(name, Path(sys.executable), DRIVER, code=folder))
                stack.callback(sides[-1].close)
                checkout: Any = sides[-1].ask("where")["checkout"]
                if checkout != str(folder):
                    raise Lost(f"{name}: palaestra came from {checkout}; expected {folder}")
            for (verb, details), side in product(requests, sides[:: 1 if number % 2 else -1]):
                answer = side.ask(verb, **dict(details))
                side.ask("forget")
                for row in rows:
                    if (row.verb, row.arguments) == (verb, details):
                        values[side.name][row].append(answer[row.key])
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return values


def commit(folder: Path) -> str:
    """Return the commit of a checkout, and whether its files were changed since."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "no repository"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    report, rows = Report(options), figures(options)
    folders = {"here": HERE.parent, "there": options.folder.resolve()}
    if not (folders["there"] / "palaestra" / "__init__.py").is_file():
        print(f"{options.folder} holds no palaestra; expected the folder of a checkout", file=sys.stderr)
        return 2
    try:
        values = measure(folders, rows, options.rounds)
    except Lost as error:
        print(f"one of the two cannot be measured: {error}", file=sys.stderr)
        return 1
    judged = [judge(row, values["here"][row], values["there"][row]) for row in rows]
    print(f"{'':<58}{'there':>10}{'here':>10}{'ratio':>8}   95 % interval")
    for one in judged:
        low, high = one["interval"]
        cells = f"{one['there']:>10.4g}{one['here']:>10.4g}{one['ratio']:>8.3f}   {low:.3f} to {high:.3f}"
        print(f"{one['verdict']:<7}{one['name']:<51}{cells}")
    status = report.conclude({"figures": judged, "commits": {name: commit(folder) for name, folder in folders.items()}})
    return max(status, int(options.targets and not all(one["met"] for one in judged)))


if __name__ == "__main__":
    sys.exit(main())
