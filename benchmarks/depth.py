"""Measure how many layers the tiny agent needs, and how often imitation fails: `make bench-depth`

There is one cold start for each depth and seed, without second attempts. Reported are the step at which the gate was
passed, and the CPU seconds until the model was ready. The default depth in `trainers.cold_start` was chosen from this
table.
"""

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import tyro
from peers.findings import Report

import palaestra
from palaestra.agents import TokenLimits
from palaestra.trainers.config.sections_config import ColdStartConfig
from palaestra.trainers.setup.cold_start import cold_start


@dataclass(frozen=True)
class Options:
    """Make cold starts by depth and seed."""

    env_id: str = "palaestra/TwoHop-v0"
    """Id of the environment."""
    layers: tuple[int, ...] = (2, 3)
    """Numbers of layers."""
    seeds: int = 10
    """Number of seeds of each depth."""
    patience: int = 700
    """Number of imitation steps after which a start counts as failed."""
    workers: int = 2
    """Number of processes."""
    out: Path = Path(__file__).parent / "results" / "depth.json"
    """File for the figures."""


@dataclass(frozen=True)
class Outcome:
    """Result of one cold start."""

    layers: int
    seed: int
    passed_at: int | None
    """Imitation step at which the gate was passed; None if it never was."""
    success_with_tool: float
    """Success at the last gate."""
    cpu_seconds: float


def start(env_id: str, layers: int, seed: int, patience: int) -> Outcome:
    """Make one cold start."""
    torch.set_num_threads(1)
    arena = palaestra.arena(env_id, 96, ordered=True)
    config = ColdStartConfig(layers=layers, max_attempts=1, imitation_steps=patience)
    began, passed, reached = time.process_time(), None, 0.0
    try:
        for progress in cold_start(
            arena, palaestra.demonstrator(env_id), seed=seed, limits=TokenLimits(72, 256), config=config
        ):
            if "success_with_tool" in progress.metrics:
                reached = progress.metrics["success_with_tool"]
                passed = progress.step if reached >= config.imitation_gate else None
    except palaestra.TrainingHalted:
        passed = None
    arena.close()
    return Outcome(layers, seed, passed, round(reached, 3), round(time.process_time() - began, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    report = Report(options)
    jobs = [(layers, seed) for seed in range(options.seeds) for layers in options.layers]
    outcomes = []
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = [pool.submit(start, options.env_id, *job, options.patience) for job in jobs]
        for future in waiting:
            outcomes.append(future.result())
            print(outcomes[-1], flush=True)
    for layers in options.layers:
        mine = [outcome for outcome in outcomes if outcome.layers == layers]
        passed = [outcome for outcome in mine if outcome.passed_at is not None]
        seconds = sum(outcome.cpu_seconds for outcome in mine) / max(1, len(passed))
        print(f"{layers} layers: {len(passed)} of {len(mine)} passed, {seconds:.0f} CPU s a pupil, restarts included")
    return report.conclude({"outcomes": [asdict(outcome) for outcome in outcomes]})


if __name__ == "__main__":
    sys.exit(main())
