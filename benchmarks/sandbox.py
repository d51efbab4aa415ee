"""Measure the cost of a program in the sandbox, beside `python -c` and others' Python tools: `make bench-sandbox`

Each suite runs in a separate process with its own requirements (`scripts/peers.py`). All start the same `python`, so
that only the tool around the program differs. No peer isolates the program. Sides take turns in each round, so that
other load on the machine affects all of them; a figure is the median over rounds, and a ratio the median of the ratios
within a round. CPU time is that of a side and of all processes below it. The opening of a sandbox is not counted. The
Docker row needs an engine, which DOCKER_HOST names.

Exit status 1 when a target is missed, or could not be judged. Left out: peers whose sandbox is a remote service.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from peers.findings import Report, brief, show, start_sides, target
from peers.sides import Figures, Lost, Measured, Side, around, ratio

HERE = Path(__file__).resolve().parent
DRIVERS, INSTALLED = HERE / "peers", HERE.parent / ".peers"
OURS, BARE = "palaestra", "subprocess"
PEERS = ("gem", "skyrl", "inspect", "smolagents")
ONCE, SESSION = (OURS, "once"), (OURS, "session")
REFERENCE = (BARE, "subprocess")
TOOLS = (("gem", "tool"), ("skyrl", "tool"), ("inspect", "local"), ("smolagents", "executor"))
STARTS_PYTHON = TOOLS[:3]
"""Sides whose tool starts a Python process."""
CPU_RATIO = {"print": 0.65, "numpy": 0.08, "sympy": 0.10}
"""Largest CPU time of a single run with full isolation, divided by that of a bare subprocess."""
LOOP_RATIO = 1.05
"""Largest CPU time of a long loop in the sandbox, divided by that outside."""
THROUGHPUT = 2.2
"""Smallest runs per second with two workers, divided by the bare subprocess's."""
NUMPY_THROUGHPUT = 10.0
"""Smallest runs per second of the numpy program, divided by those of the best tool that starts a Python process."""
STEP_MS, FORK_MS = 0.2, 15.0
IDLE_BYTES = 4 * 2**20
LIVE = 500
"""Number of sessions that must exist at once after work with numpy."""
OVERSHOOT_SECONDS = 0.5
DOCKER_RATIO = 1 / 8
"""Largest wall time of a run in the Docker backend, divided by that of `docker exec`."""


@dataclass(frozen=True)
class Options:
    """Run programs in sandboxes, palaestra's and others'."""

    rounds: int = 9
    """Number of rounds; all sides are measured in turn in each."""
    seconds: float = 0.5
    """Minimum seconds of one measurement."""
    steps: int = 2000
    """Number of steps in one session."""
    forks: int = 20
    """Number of forks of one session."""
    weighed: int = 100
    """Number of idle sessions whose memory is measured."""
    live: int = LIVE
    """Number of sessions at once, after work with numpy."""
    limit: float = 0.5
    """Time limit of programs that do not end."""
    docker_runs: int = 30
    """Number of runs in the Docker backend; 0 leaves them out."""
    peers: tuple[str, ...] = PEERS
    """Suites to measure beside palaestra and the bare subprocess."""
    targets: bool = True
    """Exit with status 1 if a target is missed."""
    out: Path = HERE / "results" / "sandbox.json"
    """File for the figures."""


@dataclass(frozen=True)
class Case:
    """Measurements that all sides make in turn."""

    name: str
    program: str
    ways: tuple[tuple[str, str], ...]
    workers: int = 1


def cases() -> Iterator[Case]:
    """Yield all measurements, in the order of the tables; similar ones follow each other."""
    for program in ("print", "numpy", "sympy"):
        yield Case(f"{program}, one at a time", program, (ONCE, REFERENCE, SESSION, *TOOLS))
    yield Case("long loop, one at a time", "loop", (ONCE, REFERENCE))
    yield Case("print, two workers", "print", (ONCE, REFERENCE, *STARTS_PYTHON), 2)
    yield Case("numpy, two workers", "numpy", (ONCE, REFERENCE, *STARTS_PYTHON), 2)


def judge(timed: dict[Case, Measured], alone: dict[str, Any], options: Options) -> Iterator[dict[str, Any]]:
    """Yield each figure with its target."""

    for case, found in timed.items():
        bare = [found[REFERENCE]]
        if case.workers == 1 and case.program in CPU_RATIO:
            most = CPU_RATIO[case.program]
            yield target(
                f"{case.name}: CPU, by a bare subprocess's", ratio(found[ONCE], bare, "cpu_ms", min), most=most
            )
        elif case.program == "loop":
            yield target(f"{case.name}: CPU, by that outside", ratio(found[ONCE], bare, "cpu_ms", min), most=LOOP_RATIO)
        elif case.program == "print":
            yield target(f"{case.name}: runs a second, by a bare subprocess's", ratio(found[ONCE], bare, "runs_s", max),
                         least=THROUGHPUT)  # fmt: skip
        else:
            tools = [found[way] for way in STARTS_PYTHON if way in found]
            yield target(f"{case.name}: runs a second, by the best tool's that starts a Python process",
                         ratio(found[ONCE], tools, "runs_s", max), least=NUMPY_THROUGHPUT)  # fmt: skip
    yield target("step in a session, median ms", alone["steps"]["wall_ms"], most=STEP_MS)
    yield target("fork of a session, median ms", alone["forks"]["wall_ms"], most=FORK_MS)
    yield target("bytes of an idle session", alone["idle"]["idle_bytes"], most=IDLE_BYTES)
    yield target("sessions alive at once after numpy work", alone["live"]["alive"], least=options.live)
    yield target("seconds past a time limit, the longest", alone["overshoot"]["seconds"], most=OVERSHOOT_SECONDS)
    if options.docker_runs:
        row = alone.get("docker", {})
        value = row["wall_ms"] / row["exec_ms"] if row else None
        yield target("Docker: wall time of a run, by that of `docker exec`", value, most=DOCKER_RATIO)


def measure(sides: dict[str, Side], case: Case, options: Options) -> Measured:
    """Measure one case with all sides in turn."""

    def ask(side: Side, way: str) -> dict[str, float]:
        return side.ask("time", way=way, program=case.program, seconds=options.seconds, workers=case.workers)

    return around(sides, case.ways, options.rounds, ask, (OURS, BARE))


def measure_alone(ours: Side, options: Options) -> dict[str, dict[str, float]]:
    """Measure what the other suites do not have."""
    found = {
        "steps": ours.ask("steps", count=options.steps),
        "forks": ours.ask("forks", count=options.forks),
        "idle": ours.ask("weigh", sessions=options.weighed),
        "live": ours.ask("weigh", sessions=options.live),
        "overshoot": ours.ask("overshoot", limit=options.limit),
    }
    if options.docker_runs:
        try:
            found["docker"] = ours.ask("docker_run", count=options.docker_runs)
        except Lost as error:
            print(f"the Docker backend was not measured: {error}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    report, timed = Report(options), dict[Case, Measured]()
    keys = {"CPU ms a run": "cpu_ms", "ms a run": "wall_ms", "least ms": "least_ms", "runs a s": "runs_s"}
    columns = {name: partial(_median, key) for name, key in keys.items()}
    try:
        with ExitStack() as stack:
            # The first `python` on everybody's path is the one that runs this.
            os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            names = (OURS, BARE, *options.peers)
            sides, missing = start_sides(names, names[:2], DRIVERS, "programs", INSTALLED, stack)
            for case in cases():
                timed[case] = measure(sides, case, options)
                show(case.name, timed[case], columns)
            alone = measure_alone(sides[OURS], options)
    except Lost as error:
        print(f"palaestra itself cannot be measured: {error}", file=sys.stderr)
        return 1
    for name, row in alone.items():
        print(f"{name}: " + ", ".join(f"{key} {value:,.4g}" for key, value in row.items()))
    found = {"cases": {case.name: brief(found, "cpu_ms") for case, found in timed.items()}, "alone": alone}
    return report.conclude(found, list(judge(timed, alone, options)), missing, sides)


def _median(key: str, figures: Figures) -> str:
    return f"{figures.median(key):.2f}"


if __name__ == "__main__":
    sys.exit(main())
