"""Code that all sides of `make bench-sandbox` share: the programs, the clocks, and the connection to the benchmark.

Standard library only, since it runs in the virtual environment of every peer. A side is a program that calls
`serve_programs` with its ways to run one. Every side runs the same programs with the same `python` (the first on PATH,
which the benchmark sets), so that only the tool around it differs. A run with wrong output is an error and gives no
figure. CPU time is that of the side's process and of all processes below it.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from line import answer_requests

Run = Callable[[str], str]
"""Function from a program's source to its output."""
PROGRAMS = {
    "print": ("print(6 * 7)", "42"),
    "numpy": ("import numpy as np\nprint(int(np.arange(1000).sum()))", "499500"),
    "sympy": ("import sympy\nx = sympy.Symbol('x')\nprint(sympy.factor(x**3 - 1))", "(x - 1)*(x**2 + x + 1)"),
    "loop": ("total = 0\nfor i in range(3_000_000):\n    total += i & 3\nprint(total)", "4500000"),
}
"""Source and output of each program, by name."""
_TICKS = os.sysconf("SC_CLK_TCK")


def serve_programs(
    packages: tuple[str, ...], ways: Mapping[str, Callable[[], Run]], **more: Callable[..., Any]
) -> None:
    """Answer the benchmark's requests. `ways` open a way to run programs, `more` are requests that only this side
    answers.
    """
    opened: dict[str, Run] = {}

    def time_runs(way: str, program: str, seconds: float, workers: int = 1) -> dict[str, float]:
        if way not in opened:
            opened[way] = ways[way]()
            check(opened[way], program)
        return measure(opened[way], program, seconds, workers)

    answer_requests(packages, {"time": time_runs, **more})


def check(run: Run, program: str) -> None:
    """Run a program once. Raise an error if its output is wrong."""
    source, expected = PROGRAMS[program]
    printed = run(source)
    if expected not in printed:
        raise RuntimeError(f"{program} printed {printed[:200]!r}; expected {expected!r}")


def measure(run: Run, program: str, seconds: float, workers: int) -> dict[str, float]:
    """Run a program for at least `seconds` in this many threads at once."""
    check(run, program)
    gc.collect()
    walls: list[float] = []
    cpu, began = cpu_of_tree(), time.perf_counter()

    def work(_: int) -> None:
        while time.perf_counter() - began < seconds or not walls:
            one = time.perf_counter()
            check(run, program)
            walls.append(time.perf_counter() - one)

    if workers == 1:
        work(0)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, range(workers)))
    wall = time.perf_counter() - began
    return {
        "cpu_ms": (cpu_of_tree() - cpu) / len(walls) * 1e3,
        "wall_ms": statistics.median(walls) * 1e3,
        "least_ms": min(walls) * 1e3,
        "runs_s": len(walls) / wall,
    }


def cpu_of_tree() -> float:
    """Return the CPU seconds of this process, of the processes below it, and of their ended children."""
    total, todo = 0.0, [os.getpid()]
    while todo:
        number = todo.pop()
        try:
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) / _TICKS
            for task in Path(f"/proc/{number}/task").iterdir():
                todo += [int(child) for child in (task / "children").read_text().split()]
        except OSError:  # It has just ended; its parent's figure has it.
            continue
    return total


def memory_of(number: int) -> float:
    """Return the proportional share of memory of a process, in bytes."""
    for row in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
        if row.startswith("Pss:"):
            return float(row.split()[1]) * 1024
    return 0.0


def below(number: int) -> list[int]:
    """Return the processes below one, at any depth."""
    processes: list[int] = []
    todo = [number]
    while todo:
        try:
            for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                processes += children
                todo += children
        except OSError:
            continue
    return processes
