"""Measure the cost of an environment's step and how many tool calls run at once, beside other suites: `make bench-envs`

Each suite runs in a separate process with its own interpreter and requirements (`scripts/peers.py` makes them;
benchmarks/peers has a driver for each, and their shared code). All play the same episodes in lockstep: two turns that
call a calculator, and one that answers; the start of an episode counts too. Suites take turns in each round, so that
other load on the machine affects all of them. A figure is the median over rounds, and a ratio the median of the ratios
within a round. Warm-up and the creation of environments are not counted. CPU time is that of all threads, and of the
processes that a suite starts.

Peers read a call with one regular expression and check nothing; palaestra parses JSON, checks the arguments against a
schema, and keeps messages, calls and the attempt. `free` is palaestra's arena without a barrier, as its trainer uses
it. Targets apply to `step`, Gymnasium's interface, which waits for all environments as the peers do.

Exit status 1 when a target is missed, or could not be judged because the peer is not installed. Left out: verifiers and
TRL, which cannot be stepped without a model.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from peers.findings import Report, brief, show, start_sides, target
from peers.sides import Figures, Lost, Measured, Side, around, ratio

HERE = Path(__file__).resolve().parent
DRIVERS, INSTALLED = HERE / "peers", HERE.parent / ".peers"
OURS = "palaestra"
PEERS = ("gem", "skyrl", "gymnasium", "textarena", "openenv")
IN_FLIGHT = {(64, 0.05): 0.88}
"""Smallest share of the possible calls in flight, by number of environments and seconds of a call."""
WAITING_CPU_RATIO = 0.5
"""Largest CPU time per step with an asynchronous tool, divided by that of the cheapest peer with a thread per
environment.
"""
IDLE_BYTES = 6 * 1024
OPEN_SECONDS = 0.2
ASYNC = ((OURS, "async step"), (OURS, "async free"))
THREADS = (("gem", "threads"), ("skyrl", "threads"), ("textarena", "threads"))
LOOPS = (("gem", "sync"), ("skyrl", "loop"), ("gymnasium", "sync"), ("textarena", "loop"))
FEW = (("openenv", "server"), ("gymnasium", "processes"))
"""Sides that need a session or a process per environment: they get few environments."""
MOST_SESSIONS = 64


@dataclass(frozen=True)
class Options:
    """Play calculator episodes with palaestra and its peers."""

    curve: tuple[int, ...] = (1, 64, 256, 1024, 4096)
    """Number of environments at once, with tools that only compute; 256 has a target."""
    waiting: tuple[int, ...] = (64, 1024)
    """Number of environments at once, with tools that wait."""
    latency: float = 0.05
    """Seconds that a tool waits."""
    long_latency: float = 0.25
    """Seconds that a tool waits with the last number of environments, measured in addition."""
    uneven_envs: int = 256
    """Number of environments whose tools wait for an exponentially distributed time, `latency` on average."""
    uneven_turns: tuple[int, ...] = (3, 9)
    """Turns of the episodes of these environments."""
    opened: int = 1024
    """Number of environments whose creation is timed."""
    idle: int = 4096
    """Number of environments whose memory is measured."""
    rounds: int = 5
    """Number of rounds; all sides are measured in turn in each."""
    seconds: float = 0.15
    """Minimum seconds of one measurement."""
    peers: tuple[str, ...] = PEERS
    """Suites to measure beside palaestra."""
    targets: bool = True
    """Exit with status 1 if a target is missed."""
    out: Path = HERE / "results" / "envs.json"
    """File for the figures."""


@dataclass(frozen=True)
class Case:
    """Measurements that belong together: one number of environments, one tool, one number of turns."""

    name: str
    envs: int
    latency: float
    turns: int
    ways: tuple[tuple[str, str], ...]
    """Pairs (side, way)."""
    once: tuple[tuple[str, str], ...] = ()
    """Slow sides, which are measured in the first round only."""


def cases(options: Options) -> Iterator[Case]:
    """Yield all measurements of steps, in the order of the table."""
    for envs in options.curve:
        more = FEW if envs == MOST_SESSIONS else (("gem", "threads"), (OURS, "drawn step")) if envs == 256 else ()
        ways = ((OURS, "step"), *LOOPS, (OURS, "free"), *more)
        yield Case(f"computing tool, {envs} at once", envs, 0.0, 3, ways)
    for envs in options.waiting:
        blocking = tuple((OURS, way) for way in ("blocking step", "blocking free"))
        few = FEW if envs <= MOST_SESSIONS else ()
        ways = (*ASYNC, *THREADS, *blocking, *few)
        slow = (("skyrl", "pool"), (OURS, "blocking pool"))
        yield Case(f"tool waits {1000 * options.latency:g} ms, {envs} at once", envs, options.latency, 3, ways, slow)
    for envs in options.waiting[-1:]:
        name = f"tool waits {1000 * options.long_latency:g} ms, {envs} at once"
        yield Case(name, envs, options.long_latency, 3, (*ASYNC, *THREADS))
    for turns in options.uneven_turns:
        name = f"tool waits {1000 * options.latency:g} ms on average, {turns} turns, {options.uneven_envs} at once"
        ways = ((OURS, "uneven step"), (OURS, "uneven free"))
        yield Case(name, options.uneven_envs, options.latency, turns, ways)


def measure(sides: dict[str, Side], case: Case, options: Options) -> Measured:
    """Measure one case: slow sides once, the others in each round."""

    def play(side: Side, way: str) -> dict[str, float]:
        setting = {"envs": case.envs, "latency": case.latency, "turns": case.turns}
        return side.ask("play", way=way, seconds=options.seconds, **setting)

    found = around(sides, case.ways, options.rounds, play, (OURS,)) | around(sides, case.once, 1, play, (OURS,))
    around(sides, [(name, "") for name in sides], 1, lambda side, way: side.ask("forget"))
    return found


def judge(timed: dict[Case, Measured], opened: Measured, idle: Measured, options: Options) -> Iterator[dict[str, Any]]:
    """Yield each figure, with its target if it has one."""
    for case, found in timed.items():
        if not case.latency and case.envs == 256:
            gem = [found[way] for way in (("gem", "sync"),) if way in found]
            yield target(f"{case.name}: CPU a step, by gem's", ratio(found[OURS, "step"], gem, "cpu_us", min))
        if case.turns != 3 or (OURS, "async step") not in found:
            continue
        share = found[OURS, "async step"].median("in_flight") / case.envs
        yield target(f"{case.name}: share of calls in flight", share, least=IN_FLIGHT.get((case.envs, case.latency)))
        if (OURS, "blocking step") in found:
            peers = [found[way] for way in THREADS if way in found]
            value = ratio(found[OURS, "blocking step"], peers, "in_flight", max)
            yield target(f"{case.name}: blocking calls in flight, by the best peer's", value)
            if case.envs == 1024:
                value = ratio(found[OURS, "async step"], peers, "cpu_us", min)
                name = f"{case.name}: CPU a step, by the cheapest peer's with a thread each"
                yield target(name, value, most=WAITING_CPU_RATIO)
    if options.opened == 1024:
        yield target("CPU seconds to make 1024", opened[OURS, "step"].median("cpu_s"), most=OPEN_SECONDS)
    yield target("bytes of an idle environment", idle[OURS, "step"].median("bytes"), most=IDLE_BYTES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    report, timed = Report(options), dict[Case, Measured]()
    columns: dict[str, Callable[[Figures], str]] = {
        "CPU us a step": lambda figures: f"{figures.median('cpu_us'):.1f}",
        "us a step": lambda figures: f"{figures.median('wall_us'):.1f}",
        "s a batch": lambda figures: f"{figures.median('batch_s'):.3f}",
        "least": lambda figures: f"{figures.median('least_s'):.3f}",
        "in flight": lambda figures: f"{figures.median('in_flight'):.1f}",
    }
    try:
        with ExitStack() as stack:
            sides, missing = start_sides((OURS, *options.peers), (OURS,), DRIVERS, "side", INSTALLED, stack)

            def ask(verb: str, envs: int) -> Callable[[Side, str], dict[str, float]]:
                return lambda side, way: side.ask(verb, way=way, envs=envs)

            ways = ((OURS, "step"), *LOOPS)  # Weighed before anything else has filled a process.
            idle = around(sides, ways, 1, ask("weigh", options.idle), (OURS,))
            opened = around(sides, ways, options.rounds, ask("open", options.opened), (OURS,))
            for case in cases(options):
                timed[case] = measure(sides, case, options)
                show(case.name, timed[case], columns if case.latency else dict(list(columns.items())[:2]))
    except Lost as error:
        print(f"palaestra itself cannot be measured: {error}", file=sys.stderr)
        return 1
    show("held, nothing played", idle, {"bytes": lambda figures: f"{figures.median('bytes'):,.0f}"})
    show(f"{options.opened} made", opened, {"CPU s": lambda figures: f"{figures.median('cpu_s'):.4f}"})
    found = {
        "cases": {case.name: brief(found, "cpu_us") for case, found in timed.items()},
        "idle": brief(idle, "cpu_us"),
        "opened": brief(opened, "cpu_us"),
    }
    return report.conclude(found, list(judge(timed, opened, idle, options)), missing, sides)


if __name__ == "__main__":
    sys.exit(main())
