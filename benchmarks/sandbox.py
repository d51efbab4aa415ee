"""What a program in the sandbox costs, beside a bare `python -c` and the Python tools of others: `make bench-sandbox`

Every suite runs in a process of its own with its own requirements (`scripts/peers.py`); all start the same `python`,
so that only the tool around a program differs. None of the peers contains anything. Rounds go around the sides, so that
whatever else the machine does meets all of them; a figure is the median over rounds, and a ratio that of the ratios
within a round. CPU is that of a side and of every process below it. Opening a sandbox is not counted.

Exit status 1 when a target is missed, or could not be judged. The Docker row needs an engine: DOCKER_HOST names it.

Left out: peers whose sandbox is a service of somebody else.
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
"""Those whose tool starts a Python process."""
CPU_RATIO = {"print": 0.65, "numpy": 0.08, "sympy": 0.10}
"""Most CPU of a one-shot run with full isolation, by that of a bare subprocess."""
LOOP_RATIO = 1.05
"""Most CPU of a long loop inside, by that outside."""
THROUGHPUT = 2.2
"""Least runs a second with two workers, by the bare subprocess's."""
NUMPY_THROUGHPUT = 10.0
"""Least runs a second of the numpy program, by the best tool's that starts a Python process."""
STEP_MS, FORK_MS = 0.2, 15.0
IDLE_BYTES = 4 * 2**20
LIVE = 500
"""Sessions that must live at once after numpy work."""
OVERSHOOT_SECONDS = 0.5
DOCKER_RATIO = 1 / 8
"""Most wall time of a run in the Docker backend, by that of `docker exec`."""


@dataclass(frozen=True)
class Options:
    """Programs in sandboxes, ours and others'."""

    rounds: int = 9
    """Times that everything is measured, in turn."""
    seconds: float = 0.5
    """Least length of one measurement."""
    steps: int = 2000
    """Steps in one session."""
    forks: int = 20
    """Forks of one session."""
    weighed: int = 100
    """Idle sessions, for their memory."""
    live: int = LIVE
    """Sessions at once, after numpy work."""
    limit: float = 0.5
    """Time limit of programs that do not end."""
    docker_runs: int = 30
    """Runs in the Docker backend; 0 where there is no engine to measure."""
    peers: tuple[str, ...] = PEERS
    """Whom to measure beside palaestra and the bare subprocess."""
    targets: bool = True
    """Fail when a target is missed."""
    out: Path = HERE / "results" / "sandbox.json"
    """Where the figures go."""


@dataclass(frozen=True)
class Case:
    """What is measured around the sides, together."""

    name: str
    program: str
    ways: tuple[tuple[str, str], ...]
    workers: int = 1


def cases() -> Iterator[Case]:
    """Everything that is timed around the sides, in the order of the tables; what differs least, one after another."""
    for program in ("print", "numpy", "sympy"):
        yield Case(f"{program}, one at a time", program, (ONCE, REFERENCE, SESSION, *TOOLS))
    yield Case("long loop, one at a time", "loop", (ONCE, REFERENCE))
    yield Case("print, two workers", "print", (ONCE, REFERENCE, *STARTS_PYTHON), 2)
    yield Case("numpy, two workers", "numpy", (ONCE, REFERENCE, *STARTS_PYTHON), 2)


def judge(timed: dict[Case, Measured], alone: dict[str, Any], options: Options) -> Iterator[dict[str, Any]]:
    """Every target: what was found, what was wanted."""

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
    """One case, around the sides."""

    def ask(side: Side, way: str) -> dict[str, float]:
        return side.ask("time", way=way, program=case.program, seconds=options.seconds, workers=case.workers)

    return around(sides, case.ways, options.rounds, ask, (OURS, BARE))


def measure_alone(ours: Side, options: Options) -> dict[str, dict[str, float]]:
    """What has no counterpart elsewhere."""
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
    """Measure, print, write JSON."""
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
