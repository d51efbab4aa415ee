"""Control runs that show whether GRPO's advantages cause its gain: same start and settings, but other advantages.

Controls run one after the other, in a second process beside the main run, which takes over what is left when it has
ended: all of them where memory is too small for both. If the main process ends, the second one is killed.
"""

import multiprocessing
import os
import resource
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from palaestra.loading import load_and_call
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.evaluation.during_training import evaluate_both
from palaestra.trainers.evaluation.evaluate import Both, pooled
from palaestra.trainers.grpo import train_learner
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.losses.group_advantages import Shuffled, Successes
from palaestra.trainers.scale.available_memory import available_memory
from palaestra.trainers.setup.open_run import open_arena, open_model

CONTROLS = ("cloning successes", "shuffled rewards")
"""Names of the controls. Cloning is online: each step imitates the episodes that have just succeeded.

Shuffling is three runs of a third of the steps each, reported as one: without a signal the share of tool use walks
randomly, and a single long run may end anywhere."""
SHUFFLES = 3
_SPARE = 1.2
"""Memory that must be free for a second process, as a multiple of the most that this one has held: a control needs no
more than the imitation before it."""


@dataclass(frozen=True, slots=True)
class Control:
    """Result of a control run."""

    name: str
    measured: Both
    curve: list[float]
    """Success of each step's episodes, averaged over the control's runs."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One training run of a control, and its evaluation: what one process does at a time."""

    name: str
    start: Path
    config: GRPOConfig
    advantage: Successes | Shuffled

    def run(self) -> tuple[list[float], Both]:
        """Train the model in the folder `start`. Return the success of each step's episodes, and the evaluation."""
        config = replace(self.config, recipe=replace(self.config.recipe, advantage=self.advantage))
        local = open_model(str(self.start), config)
        with closing(open_arena(config)) as practice:
            learner = Learner(local.agent, local.model, config)
            curve = [step.metrics["rewards/success/mean"] for step in train_learner(learner, practice)]
        return curve, evaluate_both(local.agent, config)


def _pieces(start: Path, config: GRPOConfig) -> list[_Piece]:
    third = replace(config, steps=max(1, config.steps // SHUFFLES))
    shuffled = [Shuffled(config.seed * SHUFFLES + run) for run in range(SHUFFLES)]
    return [
        _Piece(CONTROLS[0], start, config, Successes()),
        *(_Piece(CONTROLS[1], start, third, advantage) for advantage in shuffled),
    ]


class Background:
    """The controls of a run in a second process, which is ready as soon as it can be; a context manager that stops it.

    It imports what it needs while the main process still makes the model to start from.
    """

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=load_and_call, initargs=(__name__, "die_with_parent")
        )
        self._pool.submit(os.getpid)  # The process is spawned with the first submission.
        self._waiting: list[tuple[_Piece, Future[tuple[list[float], Both]] | None]] = []

    def __enter__(self) -> "Background":
        return self

    def __exit__(self, *failure: object) -> None:
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=failure[0] is None, cancel_futures=True)
        for process in processes:
            process.kill()

    def start(self, start: Path, config: GRPOConfig) -> bool:
        """Begin to train the controls from the model in the folder `start`. Where the memory is too small for a second
        run, leave all to `results`, and return False.
        """
        available = available_memory()
        beside = not available or available >= _SPARE * _most_held()
        self._waiting = [(piece, self._pool.submit(piece.run) if beside else None) for piece in _pieces(start, config)]
        return beside

    def results(self) -> list[Control]:
        """Return the controls when all are trained. What the second process has not begun is run in this one."""
        here = [(piece, piece.run()) for piece, future in self._waiting[::-1] if future is None or future.cancel()]
        waited = [(piece, future.result()) for piece, future in self._waiting if future and not future.cancelled()]
        done = [*waited, *here[::-1]]
        return [_control(name, [result for piece, result in done if piece.name == name]) for name in CONTROLS]


def _most_held() -> int:
    """Return the most bytes of memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _control(name: str, runs: Sequence[tuple[list[float], Both]]) -> Control:
    curve = np.mean([curve for curve, _ in runs], axis=0).tolist()
    return Control(name, pooled([measured for _, measured in runs]), curve)


def die_with_parent() -> None:
    """Set up a spawned process: one torch thread, and exit when the parent ends, for any reason."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
