"""Measure how fast episodes are written, read, replayed and rescored on one core: `make bench-episodes`

The episodes are demonstrations of TwoHop in a temporary file, with token rows as long as those of a training run.
Figures are episodes per CPU second, the median over rounds in which the operations take turns. Exit status 1 when
rescoring misses its target.
"""

import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro
from peers.findings import Report, target

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.envs.records.rescore import find_scorer, rescore
from palaestra.episode import Start, TokenRow
from palaestra.record import Record, read, write

ENV = "palaestra/TwoHop-v0"
TARGET = 1000
"""Smallest number of episodes per second that are read and rescored."""


@dataclass(frozen=True)
class Options:
    """Measure operations on episodes on disk."""

    episodes: int = 2000
    """Number of episodes."""
    row_tokens: int = 160
    """Tokens per episode, four in ten of them sampled."""
    rounds: int = 5
    """Number of rounds; each figure is the median over them."""
    out: Path = Path(__file__).parent / "results" / "episodes.json"
    """File for the figures."""


def records(options: Options) -> list[Record]:
    """Return demonstrations with random tokens."""
    arena = palaestra.arena(ENV, 64)
    agent = Agent(ScriptedPolicy(palaestra.demonstrator(ENV)))
    rng = np.random.default_rng(0)

    def row() -> TokenRow:
        sampled = rng.random(options.row_tokens) < 0.4
        return TokenRow(
            rng.integers(512, size=options.row_tokens).astype(np.int32),
            sampled,
            np.where(sampled, -rng.random(options.row_tokens), 0.0).astype(np.float32),
            np.where(sampled, 7, -1).astype(np.int32),
        )

    starts = (Start(n, n, n // 8) for n in range(options.episodes))
    found = [Record(ENV, replace(one, rows=(row(),)), {"split": "train"}) for one in play(agent, arena, starts)]
    arena.close()
    return found


def measure(options: Options) -> dict[str, float]:
    """Return the episodes per CPU second of each operation."""
    played, stage, scorer = records(options), ReplayMachines(), find_scorer(ENV)
    seconds: dict[str, list[float]] = {"written": [], "read": [], "rescored": [], "replayed": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "episodes.jsonl"
        work: dict[str, Callable[[], Iterator[object]]] = {
            "written": lambda: iter([write(file, played)]),
            "read": lambda: read(file),
            "rescored": lambda: (rescore(one, scorer) for one in read(file)),
            "replayed": lambda: (stage.replay([one]) for one in read(file)),
        }
        for _ in range(options.rounds):
            for name, begin in work.items():
                began = time.process_time()
                deque(begin(), maxlen=0)
                seconds[name].append(time.process_time() - began)
    return {name: round(options.episodes / statistics.median(found)) for name, found in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    report, rates = Report(options), measure(options)
    for name, rate in rates.items():
        print(f"{name:<10}{rate:>8,} episodes a second of CPU")
    wanted = target("read and scored anew, episodes a second of CPU", rates["rescored"], least=TARGET)
    return report.conclude({"episodes_per_cpu_second": rates}, [wanted])


if __name__ == "__main__":
    sys.exit(main())
