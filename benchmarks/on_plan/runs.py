"""Short runs of the tiny agent on CPUs, timed step by step, in the settings whose step time the forecast predicts."""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from asynchronous import ENV, Slow, engine_maker

import palaestra
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.local_model import LocalModel, load
from palaestra.agents.model_folder import export
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.plan.workload import PlannedEpisode, measured
from palaestra.trainers.setup.cold_start import cold_started

PROMPTS, GENERATIONS = 16, 8
WARM, STEPS = 2, 7
"""Number of first steps that no mean includes, and number of all steps."""


@dataclass(frozen=True)
class Setting:
    """Settings of one run."""

    processes: int
    """1 if the engine runs in the trainer's process, 2 if it has its own."""
    tool_ms: float
    ahead: int
    """Number of batches that are played ahead of the learner."""
    slots: int

    def __str__(self) -> str:
        way = "ahead" if self.ahead else "by turns"
        return f"{self.processes} process{'es' * (self.processes > 1)}, {self.tool_ms:g} ms, {way}, {self.slots} slots"


def settings(slots: tuple[int, ...]) -> list[Setting]:
    """Return the settings: one and two processes in turns, and two with play ahead, each with both tools and all these
    numbers of slots.
    """
    ways = ((1, 0), (2, 0), (2, 1))
    return [Setting(n, tool, ahead, width) for n, ahead in ways for tool in (0.0, 50.0) for width in slots]


def trained(folder: Path) -> Path:
    """Make a tiny agent that uses its tools, so that episodes have several turns."""
    config = tiny_config(ENV, steps=5)
    local = cold_started(config).local
    with closing(palaestra.arena(ENV, config.play.slots)) as arena:
        for _ in train_learner(Learner(local.agent, local.model, config), arena):
            pass
    export(local.model, local.tokenizer, folder)
    return folder


def timed(setting: Setting, local: LocalModel, folder: Path) -> tuple[dict[str, Any], list[PlannedEpisode]]:
    """Return the seconds of the steps of one run, and its episodes. The learning rate is so small that the distribution
    of episodes is the same in all runs.
    """
    config = tiny_config(
        ENV,
        model=str(folder),
        steps=STEPS,
        num_prompts=PROMPTS,
        num_generations=GENERATIONS,
        slots=setting.slots,
        ordered=False,
        max_staleness=setting.ahead,
        learning_rate=1e-9,
        device="cpu",
    )
    learner, stamps, curve, episodes = Learner(local.agent, local.model, config), [], [], []
    with closing(palaestra.arena(ENV, setting.slots, ordered=False)) as arena:
        for step in train_learner(learner, Slow(arena, setting.tool_ms / 1000)):
            stamps.append(time.perf_counter())
            curve.append(step.metrics)
            episodes += [episode for episode, _ in step.rollouts]
    figures: dict[str, list[float]] = {
        "step": list(np.diff(stamps[WARM - 1 :])),
        "learn": [one["time/learn"] for one in curve[WARM:]],
        "tokens": [one["num_tokens"] for one in curve[WARM:]],
    }
    rounded = {name: [float(f"{value:.4g}") for value in values] for name, values in figures.items()}
    return asdict(setting) | rounded, measured(episodes, 0.0)


def measure(
    settings: Sequence[Setting], folder: Path, minutes: float
) -> Iterator[tuple[dict[str, Any], list[PlannedEpisode]]]:
    """Measure all settings in turn, repeatedly until the time is over, each at least once."""
    until = time.monotonic() + 60 * minutes
    widest = max(setting.slots for setting in settings)
    with ExitStack() as stack:
        models = {}
        for processes, engine in ((1, TorchEngine), (2, engine_maker())):
            models[processes] = load(str(folder), slots=widest, device="cpu", engine=engine)
            stack.enter_context(closing(models[processes].agent.engine))
        for number, setting in enumerate(cycle(settings)):
            if number >= len(settings) and time.monotonic() > until:
                return
            found = timed(setting, models[setting.processes], folder)
            print(f"{setting}: {statistics.mean(found[0]['step']):.3f} s a step", file=sys.stderr, flush=True)
            yield found
