"""Measure the cost of evaluating a served model, beside inspect_ai and verifiers: `make bench-eval`

The model is a server on loopback that answers after 50 ms: first with a call of a calculator, then with the answer, so
an episode has two requests. Each suite runs in a separate process with its own interpreter (`scripts/peers.py` makes
them), plays the same questions, and checks that all answers are right. Suites take turns in each round, so that other
load on the machine affects all of them, and each is warmed up by a short evaluation. Reported are the largest and the
average number of requests in flight, as the server counts them. Given a client's milliseconds per request, its average
cannot be larger than 50 ms divided by them.

Left out: logs of verifiers, which saves none here; inspect_ai and palaestra write theirs.
"""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from peers.findings import Report, brief, show, start_sides, target
from peers.sides import Lost, Measured, Side, around, ratio

HERE = Path(__file__).resolve().parent
DRIVERS, INSTALLED = HERE / "peers", HERE.parent / ".peers"
OURS, PEERS = "palaestra", ("inspect", "verifiers")
SECONDS = 900.0
"""Maximum seconds of an evaluation."""
CPU_BY_INSPECT = 0.1
"""Largest CPU time per episode, divided by inspect_ai's."""
IN_FLIGHT = {256: 0.95}
"""Smallest share of the allowed requests that must be in flight at the peak."""
COLUMNS = {
    "CPU ms an episode": lambda figures: f"{figures.median('cpu_ms'):.2f}",
    "wall ms": lambda figures: f"{figures.median('wall_ms'):.2f}",
    "peak in flight": lambda figures: f"{figures.median('peak'):.0f}",
    "mean": lambda figures: f"{figures.median('mean'):.0f}",
    "memory MB": lambda figures: f"{figures.median('memory_mb'):.0f}",
}


@dataclass(frozen=True)
class Options:
    """Evaluate a served model with palaestra and its peers."""

    at_once: tuple[int, ...] = (256, 1024)
    """Numbers of episodes and requests at once."""
    episodes: int = 2
    """Episodes of an evaluation, for each number at once."""
    latency: float = 0.05
    """Seconds in which the server answers."""
    rounds: int = 3
    """Number of rounds; all sides are measured in turn in each."""
    peers: tuple[str, ...] = PEERS
    """Suites to measure beside palaestra."""
    targets: bool = True
    """Exit with status 1 if a target is missed."""
    out: Path = HERE / "results" / "evaluation.json"
    """File for the figures."""


@contextmanager
def server(latency: float) -> Iterator[str]:
    """Run the server in a separate process; yield its address."""
    command = [sys.executable, str(DRIVERS / "chat_server.py"), str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.stdin.close()


def flight(url: str) -> dict[str, float]:
    """Return the server's counts since the last call."""
    with urllib.request.urlopen(f"{url}/flight", timeout=60) as response:
        results: dict[str, float] = json.load(response)
    return results


def judge(at_once: int, results: Measured) -> Iterator[dict[str, Any]]:
    """Yield each figure, with its target if it has one."""
    own = results[OURS, "eval"]
    peers = [results[way] for way in (("inspect", "eval"),) if way in results]
    by_inspect = ratio(own, peers, "cpu_ms", min)
    yield target(f"{at_once} at once: CPU an episode, by inspect_ai's", by_inspect, most=CPU_BY_INSPECT)
    share = own.median("peak") / at_once
    yield target(f"{at_once} at once: share in flight at most", share, least=IN_FLIGHT.get(at_once))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    report, timed, targets = Report(options), dict[int, Measured](), list[dict[str, Any]]()
    try:
        with ExitStack() as stack:
            url = stack.enter_context(server(options.latency))
            sides, missing = start_sides((OURS, *options.peers), (OURS,), DRIVERS, "eval", INSTALLED, stack, SECONDS)
            ways = [(name, "eval") for name in sides]
            around(sides, ways, 1, lambda side, way: side.ask("play", url=url, episodes=16, at_once=8), (OURS,))
            for at_once in options.at_once:

                def play(side: Side, way: str, at_once: int = at_once) -> dict[str, float]:
                    flight(url)
                    episodes = options.episodes * at_once
                    return side.ask("play", url=url, episodes=episodes, at_once=at_once) | flight(url)

                timed[at_once] = around(sides, ways, options.rounds, play, (OURS,))
                show(f"{at_once} at once, {1000 * options.latency:g} ms", timed[at_once], COLUMNS)
                targets += judge(at_once, timed[at_once])
    except Lost as error:
        print(f"palaestra itself cannot be measured: {error}", file=sys.stderr)
        return 1
    return report.conclude(
        {"cases": {n: brief(results, "cpu_ms") for n, results in timed.items()}}, targets, missing, sides
    )


if __name__ == "__main__":
    sys.exit(main())
