"""What a step of an environment costs, and how many tool calls run at once, beside other suites: `make bench-envs`

Every suite runs in a process of its own, by its own interpreter and requirements (`scripts/peers.py` makes them;
benchmarks/peers holds a driver for each, and what they share). All play the same episodes: two turns that call a
calculator, one that answers, in lockstep, beginnings included. Rounds go around the suites, so that whatever else the
machine does meets all of them; a figure is the median over rounds, and a ratio that of the ratios within a round.
Warm-up and the making of environments are not counted. CPU is that of all threads, and of the processes that a suite
starts.

Peers read a call by one regular expression and check nothing; palaestra parses JSON, checks the arguments against a
schema and keeps messages, calls and the attempt. `free` is palaestra's arena as its trainer plays it, without a
barrier; targets are judged by `step`, Gymnasium's face, which waits for all as the peers do. Exit status 1 when a
target is missed, or could not be judged because its peer is not there.

Left out: verifiers and TRL, which cannot be stepped without a model.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from peers.findings import brief, show_targets, start_sides, target, write
from peers.sides import Lost, Measured, Side, around, ratio

from palaestra.trainers.run import versions

HERE = Path(__file__).resolve().parent
DRIVERS, INSTALLED = HERE / "peers", HERE.parent / ".peers"
OURS = "palaestra"
PEERS = ("gem", "skyrl", "gymnasium", "textarena", "openenv")
CPU_RATIO = 1.5
"""Most CPU a step, by gem's, tools that only compute."""
IN_FLIGHT = {(64, 0.05): 0.88, (1024, 0.05): 0.65, (1024, 0.25): 0.9}
"""Least share of the calls that could be in flight, by environments and seconds of a call."""
WAITING_CPU_RATIO = 0.5
"""Most CPU a step of an asynchronous tool, by that of the cheapest peer that has a thread for each environment."""
BLOCKING_RATIO = 1.0
"""Least calls in flight of a blocking tool, by those of the best peer with as many threads."""
IDLE_BYTES = 6 * 1024
OPEN_SECONDS = 0.2
ASYNC = ((OURS, "async step"), (OURS, "async free"))
THREADS = (("gem", "threads"), ("skyrl", "threads"), ("textarena", "threads"))
LOOPS = (("gem", "sync"), ("skyrl", "loop"), ("gymnasium", "sync"), ("textarena", "loop"))
FEW = (("openenv", "server"), ("gymnasium", "processes"))
"""Sides that need a session or a process for each environment: played by few."""
MOST_SESSIONS = 64


@dataclass(frozen=True)
class Options:
    """Calculator episodes of palaestra and its peers."""

    curve: tuple[int, ...] = (1, 64, 256, 1024, 4096)
    """Environments at once, tools that only compute; 256 has a target."""
    waiting: tuple[int, ...] = (64, 1024)
    """Environments at once, tools that wait."""
    latency: float = 0.05
    """Seconds that a tool waits."""
    long_latency: float = 0.25
    """And for the last number of environments, so long."""
    uneven_envs: int = 256
    """Environments whose tools wait for exponential lengths, `latency` on average."""
    uneven_turns: tuple[int, ...] = (3, 9)
    """Turns of their episodes."""
    opened: int = 1024
    """Environments that are made, for the seconds that takes."""
    idle: int = 4096
    """Environments that are held, for the bytes that takes."""
    rounds: int = 5
    """Times that everything is measured, in turn."""
    seconds: float = 0.15
    """Least length of one measurement."""
    peers: tuple[str, ...] = PEERS
    """Whom to measure beside palaestra."""
    targets: bool = True
    """Fail when a target is missed."""
    out: Path = HERE / "results" / "envs.json"
    """Where the figures go."""


@dataclass(frozen=True)
class Case:
    """What is measured around the sides, together: one number of environments, one tool, one length."""

    name: str
    envs: int
    latency: float
    turns: int
    ways: tuple[tuple[str, str], ...]
    """Pairs (side, way)."""
    once: tuple[tuple[str, str], ...] = ()
    """Those that are slow, and measured in the first round alone."""


def cases(options: Options) -> Iterator[Case]:
    """Everything that is timed step by step, in the order of the table."""
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


def ask_all(
    sides: dict[str, Side], ways: Sequence[tuple[str, str]], rounds: int, ask: Callable[[Side, str], dict[str, float]]
) -> Measured:
    """Ask around. A peer that fails is left out; palaestra must not fail."""
    found = around(sides, ways, rounds, ask)
    for (name, _), figures in found.items():
        if name == OURS and figures.lost:
            raise Lost(figures.lost)
    return found


def measure(sides: dict[str, Side], case: Case, options: Options) -> Measured:
    """One case: a first batch each that is not counted, then the rounds."""

    def play(seconds: float) -> Callable[[Side, str], dict[str, float]]:
        setting = {"envs": case.envs, "latency": case.latency, "turns": case.turns}
        return lambda side, way: side.ask("play", way=way, seconds=seconds, **setting)

    found = ask_all(sides, (*case.ways, *case.once), 1, play(0.0))
    fit = [way for way in case.ways if way in found and not found[way].lost]
    once = [way for way in case.once if way in found and not found[way].lost]
    found |= ask_all(sides, once, 1, play(0.0)) | ask_all(sides, fit, options.rounds, play(options.seconds))
    ask_all(sides, [(name, "") for name in sides], 1, lambda side, way: side.ask("forget"))
    return found


def judge(timed: dict[Case, Measured], opened: Measured, idle: Measured, options: Options) -> Iterator[dict[str, Any]]:
    """Every target that was measured: what was found, what was wanted."""

    for case, found in timed.items():
        peers = [found[way] for way in THREADS if way in found]
        if not case.latency and case.envs == 256:
            gem = [found[way] for way in (("gem", "sync"),) if way in found]
            value = ratio(found[OURS, "step"], gem, "cpu_us", min)
            yield target(f"{case.name}: CPU a step, by gem's", value, most=CPU_RATIO)
        if case.turns == 3 and (case.envs, case.latency) in IN_FLIGHT and (OURS, "async step") in found:
            share = found[OURS, "async step"].median("in_flight") / case.envs
            least = IN_FLIGHT[case.envs, case.latency]
            yield target(f"{case.name}: share of calls in flight", share, least=least)
            if case.latency == options.latency:
                value = ratio(found[OURS, "blocking step"], peers, "in_flight", max)
                yield target(f"{case.name}: blocking calls in flight, by the best peer's", value, least=BLOCKING_RATIO)
                if case.envs == 1024:
                    value = ratio(found[OURS, "async step"], peers, "cpu_us", min)
                    name = f"{case.name}: CPU a step, by the cheapest peer's with a thread each"
                    yield target(name, value, most=WAITING_CPU_RATIO)
    if options.opened == 1024:
        yield target("CPU seconds to make 1024", opened[OURS, "step"].median("cpu_s"), most=OPEN_SECONDS)
    yield target("bytes of an idle environment", idle[OURS, "step"].median("bytes"), most=IDLE_BYTES)


def weigh(sides: dict[str, Side], options: Options) -> Measured:
    """Bytes of an idle environment, before anything else has filled a process."""
    ways = ((OURS, "step"), *LOOPS)
    return ask_all(sides, ways, 1, lambda side, way: side.ask("weigh", way=way, envs=options.idle))


def opening(sides: dict[str, Side], options: Options) -> Measured:
    """CPU seconds to make environments."""
    ways = ((OURS, "step"), *LOOPS)
    return ask_all(sides, ways, options.rounds, lambda side, way: side.ask("open", way=way, envs=options.opened))


def show(case: Case, found: Measured) -> None:
    """The rows of one case."""
    columns = ["CPU us a step", "us a step"]
    columns += ["s a batch", "least", "in flight", "share"] if case.latency else ["steps a s"]
    print(f"\n{case.name}\n  {'':<34}" + "".join(f"{name:>15}" for name in columns))
    for (name, way), figures in found.items():
        label = f"{name}, {way}"
        if figures.lost:
            print(f"  {label:<34} not measured: {figures.lost}")
            continue
        cpu, wall, flight, batch, least = map(figures.median, ("cpu_us", "wall_us", "in_flight", "batch_s", "least_s"))
        cells = [f"{cpu:.1f}", f"{wall:.1f}"]
        if case.latency:
            cells += [f"{batch:.3f}", f"{least:.3f}", f"{flight:.1f}", f"{flight / case.envs:.2f}"]
        else:
            cells.append(f"{1e6 / wall:,.0f}")
        print(f"  {label:<34}" + "".join(f"{cell:>15}" for cell in cells), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    options = tyro.cli(Options, args=arguments)
    load, began = os.getloadavg(), time.monotonic()
    timed: dict[Case, Measured] = {}
    try:
        with ExitStack() as stack:
            sides, missing = start_sides((OURS, *options.peers), (OURS,), DRIVERS, "side", INSTALLED, stack)
            idle, opened = weigh(sides, options), opening(sides, options)
            for case in cases(options):
                timed[case] = measure(sides, case, options)
                show(case, timed[case])
    except Lost as error:
        print(f"palaestra itself cannot be measured: {error}", file=sys.stderr)
        return 1
    print(f"\n{'':<36}{'bytes, idle':>15}{f'CPU s, {options.opened} made':>20}")
    for (name, way), figures in idle.items():
        if not figures.lost and not opened[name, way].lost:
            cells = [f"{figures.median('bytes'):,.0f}", f"{opened[name, way].median('cpu_s'):.4f}"]
            print(f"  {f'{name}, {way}':<34}{cells[0]:>15}{cells[1]:>20}")
    targets = list(judge(timed, opened, idle, options))
    show_targets(targets, missing)
    record = {
        "targets": targets,
        "cases": {case.name: brief(found, "cpu_us") for case, found in timed.items()},
        "idle": brief(idle, "cpu_us"),
        "opened": brief(opened, "cpu_us"),
        "missing": missing,
        "seconds": round(time.monotonic() - began),
        "options": {**asdict(options), "out": options.out.name},
        "versions": versions() | {name: side.versions for name, side in sides.items()},
    }
    write(options.out, record, load)
    return 1 if options.targets and not all(one["met"] for one in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
