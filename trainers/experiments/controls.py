"""Control runs that show whether GRPO's advantages cause its gain: same start and settings, but other advantages.

Controls run one after the other, in a second process beside the main run. If the main process ends, they are killed.
"""

import multiprocessing
import os
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.evaluation.during_training import evaluate_both
from palaestra.trainers.evaluation.evaluate import Both, pooled
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.losses.group_advantages import Shuffled, Successes
from palaestra.trainers.setup.open_run import open_arena, open_model

CONTROLS = ("cloning successes", "shuffled rewards")
"""Names of the controls. Cloning is online: each step imitates the episodes that have just succeeded.

Shuffling is three runs of a third of the steps each, reported as one: without a signal the share of tool use walks
randomly, and a single long run may end anywhere."""
SHUFFLES = 3


@dataclass(frozen=True, slots=True)
class Control:
    """Result of a control run."""

    name: str
    measured: Both
    curve: list[float]
    """Success of each step's episodes, averaged over the control's runs."""


def run_control(name: str, start: Path, config: GRPOConfig) -> Control:
    """Train the model in the folder `start` with the advantages of the control `name`, and evaluate it."""
    if name == CONTROLS[0]:
        runs = [_run(start, config, Successes())]
    else:
        third = replace(config, steps=max(1, config.steps // SHUFFLES))
        runs = [_run(start, third, Shuffled(config.seed * SHUFFLES + run)) for run in range(SHUFFLES)]
    curve = np.mean([curve for curve, _ in runs], axis=0).tolist()
    return Control(name, pooled([measured for _, measured in runs]), curve)


def _run(start: Path, config: GRPOConfig, advantage: Successes | Shuffled) -> tuple[list[float], Both]:
    config = replace(config, recipe=replace(config.recipe, advantage=advantage))
    local = open_model(str(start), config)
    with closing(open_arena(config)) as practice:
        learner = Learner(local.agent, local.model, config)
        curve = [step.metrics["rewards/success/mean"] for step in train_learner(learner, practice)]
    return curve, evaluate_both(local.agent, config)


class Background:
    """One worker process for controls; a context manager that stops it on exit."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=die_with_parent)

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *failure: object) -> None:
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=failure[0] is None, cancel_futures=True)
        for process in processes:
            process.kill()

    def submit(self, name: str, start: Path, config: GRPOConfig) -> "Future[Control]":
        """Queue a control run. Return a future of its result."""
        return self._pool.submit(run_control, name, start, config)


def die_with_parent() -> None:
    """Set up a spawned process: one torch thread, and exit when the parent ends, for any reason."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
