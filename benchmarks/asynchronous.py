"""Measure play during learning against play and learning in turns, with slow tools: `make bench-async`

Both sides train the same agent with the same engine, which is a separate process, on the same tasks. Each tool answers
after `tool_ms`. In turns, a step costs play plus learning, G + T; at the same time, it costs at least the longer of the
two. G and T are measured in turns in the same run. The gain must reach a share of the bound (G + T) / max(G, T), at
equal success in the last fifth of the steps. Reported are wall seconds, and the CPU seconds of both processes.

Exit status 1 when a target is missed.
"""

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from peers.findings import Report, target

import palaestra
from palaestra.agents.local_model import EngineMaker, load
from palaestra.agents.model_folder import export
from palaestra.episode import Ending, Event, Start
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.setup.cold_start import cold_started

ENV = "palaestra/TwoHop-v0"
TARGET = 0.8
"""Smallest share of the bound that the gain must reach."""
EQUAL = 0.1
"""Largest loss of success: more than two standard errors of the difference at the default sizes."""
WARM = 2
"""Number of first steps that no mean includes."""


@dataclass(frozen=True)
class Options:
    """Train one agent twice."""

    model: Path | None = None
    """Folder of the agent; by default a tiny agent is made."""
    tool_ms: float = 200
    """Time of each tool call."""
    steps: int = 40
    """Number of steps of each side."""
    max_staleness: int = 1
    """Number of batches that are played ahead."""
    num_prompts: int = 12
    """Number of tasks per step."""
    num_generations: int = 8
    """Number of episodes per task."""
    correction: str = "truncated"
    """Correction for tokens that were sampled from older weights."""
    targets: bool = True
    """Exit with status 1 if a target is missed."""
    out: Path = Path(__file__).parent / "results" / "asynchronous.json"
    """File for the figures."""


class Slow:
    """An arena whose tools answer late. No thread waits: an answer is held until it is due."""

    def __init__(self, arena: palaestra.Arena, seconds: float) -> None:
        self._arena, self._seconds = arena, seconds
        self._due: dict[int, float] = {}
        self._kept: list[Event] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._arena, name)

    def begin(self, slot: int, start: Start) -> None:
        """Begin an episode. Drop the answer that is held for the slot, because its episode has ended."""
        self._due.pop(slot, None)
        self._kept = [event for event in self._kept if event.slot != slot]
        self._arena.begin(slot, start)

    def send(self, actions: Mapping[int, str]) -> None:
        """Send the turns; their tools begin to run now."""
        self._due |= dict.fromkeys(actions, time.monotonic() + self._seconds)
        self._arena.send(actions)

    def finish(self, slot: int, ending: Ending, text: str = "") -> None:
        """End the episode without a tool call."""
        self._due.pop(slot, None)
        self._arena.finish(slot, ending, text)

    def recv(self, min_ready: int = 1, timeout: float | None = None) -> list[Event]:
        """Return the events that are due now or within the timeout."""
        deadline = time.monotonic() + (60 if timeout is None else timeout)
        while True:
            self._kept += self._arena.recv(0, 0.0)
            now = time.monotonic()
            due = [event.ending is not None or self._due.get(event.slot, 0.0) <= now for event in self._kept]
            if sum(due) >= min_ready or now >= deadline:
                ready = [event for event, over in zip(self._kept, due, strict=True) if over]
                self._kept = [event for event, over in zip(self._kept, due, strict=True) if not over]
                return ready
            time.sleep(0.001)


def engine_maker() -> EngineMaker:
    """Return the maker of an engine in a separate process."""
    from palaestra.agents.engines.process import ProcessEngine

    return ProcessEngine


def raised(folder: Path) -> Path:
    """Make a tiny agent that plays, but badly. Return its folder."""
    local = cold_started(tiny_config(ENV)).local
    export(local.model, local.tokenizer, folder)
    return folder


def side(options: Options, model: Path, lead: int) -> dict[str, float]:
    """Train from the model's folder. Return the seconds of a step, and the success in the last fifth of the steps."""
    slots = options.num_prompts * options.num_generations * (1 if not lead else 2)
    config = tiny_config(
        ENV,
        model=str(model),
        steps=options.steps,
        num_prompts=options.num_prompts,
        num_generations=options.num_generations,
        slots=slots,
        ordered=False,
        max_staleness=lead,
        correction=options.correction,
        device="cpu",
    )
    cpu, curve, stamps = _cpu(), [], []
    local = load(str(model), slots=slots, device="cpu", engine=engine_maker())
    learner = Learner(local.agent, local.model, config)
    with closing(local.agent.engine), closing(palaestra.arena(ENV, slots, ordered=False)) as arena:
        for progress in train_learner(learner, Slow(arena, options.tool_ms / 1000)):
            curve.append(progress.metrics)
            stamps.append(time.perf_counter())
    warm = curve[WARM:]
    return {
        "play": statistics.mean(one["time/play"] for one in warm),
        "learn": statistics.mean(one["time/learn"] for one in warm),
        "waited": statistics.mean(one.get("time/waited", one["time/play"]) for one in warm),
        "staleness": statistics.mean(one.get("staleness/mean", 0.0) for one in warm),
        "wall_a_step": (stamps[-1] - stamps[WARM - 1]) / len(warm),
        "cpu_a_step": (_cpu() - cpu) / options.steps,
        "success_before": curve[0]["rewards/success/mean"],
        "success": statistics.mean(one["rewards/success/mean"] for one in curve[-max(1, options.steps // 5) :]),
    }


def _cpu() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the figures and write them as JSON. Return the exit status."""
    options = tyro.cli(Options, args=arguments)
    torch.set_num_threads(1)
    report = Report(options)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or raised(Path(folder) / "model")
        turns, once = (side(options, model, lead) for lead in (0, options.max_staleness))
    bound = (turns["play"] + turns["learn"]) / max(turns["play"], turns["learn"])
    gain = turns["wall_a_step"] / once["wall_a_step"]
    for name, values in (("by turns", turns), ("at once", once)):
        print(f"{name:<10}" + "  ".join(f"{key} {value:.3g}" for key, value in values.items()))
    print(f"a step is {gain:.2f} times as fast; the bound is {bound:.2f}")
    targets = [
        target("gain by its bound", gain / bound, least=TARGET),
        target("success at the end, less that by turns", once["success"] - turns["success"], least=-EQUAL),
        target("CPU seconds a step, by those by turns", once["cpu_a_step"] / turns["cpu_a_step"]),
    ]
    return report.conclude({"by_turns": turns, "at_once": once, "gain": gain, "bound": bound}, targets)


if __name__ == "__main__":
    sys.exit(main())
