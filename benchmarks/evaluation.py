"""What an evaluation of a served model costs, beside inspect_ai and verifiers: `make bench-eval`

A server on loopback that takes 50 ms calls a calculator once and then answers: two requests an episode. Every suite
runs in a process of its own, by its own interpreter (`scripts/peers.py` makes them), plays the same questions, and
checks that all answers are right. Rounds go around the suites, so that whatever else the machine does meets all of
them. Each side is warmed up by a short evaluation. Flight is what the server saw: requests in flight at most, and on
average; on average no client can have more than 50 ms by its own milliseconds a request.

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
"""Longest that an evaluation may take."""
CPU_BY_INSPECT = 0.1
"""Most CPU an episode, by inspect_ai's."""
IN_FLIGHT = {256: 0.95}
"""Least share of the requests asked for that are in flight at once, at most."""
COLUMNS = {
    "CPU ms an episode": lambda figures: f"{figures.median('cpu_ms'):.2f}",
    "wall ms": lambda figures: f"{figures.median('wall_ms'):.2f}",
    "peak in flight": lambda figures: f"{figures.median('peak'):.0f}",
    "mean": lambda figures: f"{figures.median('mean'):.0f}",
    "memory MB": lambda figures: f"{figures.median('memory_mb'):.0f}",
}


@dataclass(frozen=True)
class Options:
    """Evaluations of a served model by palaestra and its peers."""

    at_once: tuple[int, ...] = (256, 1024)
    """Episodes and requests at once."""
    episodes: int = 2
    """Episodes of an evaluation, by the number at once."""
    latency: float = 0.05
    """Seconds of the server."""
    rounds: int = 3
    """Times that everything is measured, in turn."""
    peers: tuple[str, ...] = PEERS
    """Whom to measure beside palaestra."""
    targets: bool = True
    """Fail when a target is missed."""
    out: Path = HERE / "results" / "evaluation.json"
    """Where the figures go."""


@contextmanager
def server(latency: float) -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, str(DRIVERS / "chat_server.py"), str(latency)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.stdin.close()


def flight(url: str) -> dict[str, float]:
    """What the server saw since it was last asked."""
    with urllib.request.urlopen(f"{url}/flight", timeout=60) as response:
        found: dict[str, float] = json.load(response)
    return found


def judge(at_once: int, found: Measured) -> Iterator[dict[str, Any]]:
    """What was found, and what was wanted where there is a target."""
    own = found[OURS, "eval"]
    peers = [found[way] for way in (("inspect", "eval"),) if way in found]
    by_inspect = ratio(own, peers, "cpu_ms", min)
    yield target(f"{at_once} at once: CPU an episode, by inspect_ai's", by_inspect, most=CPU_BY_INSPECT)
    share = own.median("peak") / at_once
    yield target(f"{at_once} at once: share in flight at most", share, least=IN_FLIGHT.get(at_once))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
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
        {"cases": {n: brief(found, "cpu_ms") for n, found in timed.items()}}, targets, missing, sides
    )


if __name__ == "__main__":
    sys.exit(main())
