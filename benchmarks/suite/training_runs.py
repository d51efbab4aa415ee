"""Runs with GRPO, of the tiny agent and of SmolLM2, each by one `palaestra train` command that a reader can repeat."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_WAYS = ("sampled", "greedy")
_FIGURES = ("tasks", "success", "low", "high", "tool_share")


@dataclass(frozen=True)
class GrpoRun:
    """A run in an environment of the suite, with one seed."""

    env: str
    """Name of the environment in the table."""
    agent: str
    """`tiny` or `smollm2`."""
    arguments: str
    """What follows `palaestra train`."""
    seed: int = 0

    @property
    def name(self) -> str:
        """Return the name of the run's file."""
        return f"{self.agent}-{self.env}-{self.seed}"

    @property
    def command(self) -> str:
        """Return the whole command."""
        return f"palaestra train {self.arguments} --seed {self.seed}"


_IMITATED = "--model smollm2 --preset laptop --cold-start.demonstrations 96"
_ONE_FACT = "--env-options world=plain kinds=single"
_LORA = "--steps 8 --play.max-turn-tokens 24 --play.max-episode-tokens 256 --scale.lora-r 16"
_VERDICTS = "--play.max-turn-tokens 96 --play.max-episode-tokens 512 --optimizer.max-grad-norm 0.1"
RUNS = (
    GrpoRun("Calculator-v0", "tiny", "calculator --device cpu"),
    GrpoRun("TwoHop-v0", "tiny", "two-hop --device cpu"),
    GrpoRun("Arithmetic-v0", "tiny", "arithmetic --device cpu"),
    GrpoRun("Judge-v0", "tiny", f"judge --device cpu --env-options rubric=false {_VERDICTS}"),
    GrpoRun("SearchQA-v0", "tiny", f"search-qa --device cpu {_ONE_FACT} --steps 30"),
    GrpoRun("WebNav-v0", "tiny", "web-nav --device cpu --env-options depth=1 size=4 --steps 30"),
    GrpoRun("Service-v1", "tiny", "service --device cpu --env-options level=small"),
    GrpoRun(
        "TwoHop-v0",
        "smollm2",
        f"two-hop {_IMITATED} --env-options format=tags {_LORA} --optimizer.learning-rate 5e-4",
    ),
    *(GrpoRun("SearchQA-v0", "smollm2", f"search-qa {_IMITATED} {_ONE_FACT} format=tags", seed) for seed in (1, 2)),
)


def play_run(run: GrpoRun, folder: Path) -> dict[str, Any]:
    """Run the command in a process of its own, and return its figures."""
    command = [sys.executable, "-m", *run.command.split(), "--run", str(folder / run.name), "--json", "-"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{run.command} ended with status {done.returncode}; its run is in {folder / run.name}")
    return figures_of(run, json.loads(done.stdout))


def figures_of(run: GrpoRun, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tables need of a run's summary."""
    measured = {
        stage: {way: {name: round(summary[stage][way][name], 4) for name in _FIGURES} for way in _WAYS}
        for stage in ("before", "after")
    }
    rest = {name: summary[name] for name in ("curve", "steps", "cpu_seconds", "versions")}
    return {"command": run.command, "measured": f"{datetime.now(UTC):%Y-%m-%d}", **measured, **rest}
