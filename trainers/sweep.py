"""A grid of settings over seeds: ordinary runs in one folder, each in a process of its own, some at once.

    FOLDER/ARM/seed-0/     a run, as `palaestra train` leaves it, and log.txt with what it has said

What is finished is not repeated, and what was begun goes on from its newest checkpoint: so the same call goes on with a
sweep that was stopped or killed, and with more arms or seeds it grows. A run that fails ends no other. Tiny agents that
differ in nothing that raises them are raised once, and begin from the same weights. Left out: what the arms say
together (`analysis`).
"""

import multiprocessing
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from palaestra.errors import PalaestraError, UsageError
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.controls import die_with_parent
from palaestra.trainers.durable import whole_folder
from palaestra.trainers.interrupts import Interrupted, Interrupts
from palaestra.trainers.opening import check, limits
from palaestra.trainers.progress import Progress
from palaestra.trainers.resume import agreed, read_config, settled
from palaestra.trainers.run import Run
from palaestra.trainers.training import train

MOST_RUNS = 1000
_LOOK_SECONDS = 0.5
_SAID = 300


@dataclass(frozen=True, eq=False)
class Planned:
    """A run of a sweep."""

    arm: str
    seed: int
    config: GRPOConfig
    folder: Path

    @property
    def begun(self) -> bool:
        """Whether its folder holds a run."""
        return (self.folder / "config.json").exists()

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.begun and Run.read(self.folder).summary.get("steps") == self.config.steps

    @property
    def raised(self) -> Hashable:
        """What the tiny agent of its start depends on; None for a model that is there."""
        config = self.config
        if config.model != "tiny":
            return None
        play = config.play
        return config.env, config.seed, config.cold_start, limits(config), play.slots, play.ordered, config.device

    def fault(self) -> str:
        """The last that it has said."""
        log = self.folder / "log.txt"
        said = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
        return f"{said[-1][:_SAID] if said else 'it said nothing'} ({log})"


def planned(arms: Mapping[str, GRPOConfig], seeds: Sequence[int], folder: Path) -> list[Planned]:
    """The runs of a sweep, arm by arm; what cannot work is refused before one begins."""
    if not arms or not seeds:
        raise UsageError("a sweep needs at least one arm and one seed")
    if len(arms) * len(seeds) > MOST_RUNS:
        raise UsageError(f"{len(arms)} arms of {len(seeds)} seeds are too many; at most {MOST_RUNS} runs are planned")
    names = {arm: re.sub(r"[^\w.+-]+", "_", arm).strip(".") or "_" for arm in arms}
    if len(set(names.values())) < len(names):
        raise UsageError(f"two arms would have one folder: {', '.join(names.values())}; name each value once")
    for config in arms.values():
        check(config)
    runs = [
        Planned(arm, seed, replace(config, seed=seed), folder / names[arm] / f"seed-{seed}")
        for arm, config in arms.items()
        for seed in dict.fromkeys(seeds)
    ]
    for run in runs:
        if run.begun:
            saved = read_config(run.folder)
            agreed(saved, settled(saved, run.config), run.folder)
    return runs


def sweep(
    runs: Sequence[Planned], at_once: int = 1, interrupts: Interrupts | None = None
) -> Generator[Progress, None, dict[str, str]]:
    """Take runs to their end, telling how many steps of all are taken; returns the faults of those that failed.

    Whoever stops asking, or interrupts it, has every run at work end its step and write a checkpoint.
    """
    interrupts = interrupts or Interrupts()
    waiting = deque(run for run in runs if not run.finished)
    working: dict[BaseProcess, Planned] = {}
    faults: dict[str, str] = {}
    curves = {run: _curve(run) for run in runs}
    total, told = sum(run.config.steps for run in runs), 0
    if len(waiting) < len(runs):
        yield Progress("sweep", 0, total, note=f"{len(runs) - len(waiting)} of {len(runs)} runs are finished already")
    try:
        while waiting or working:
            while len(working) < at_once and (run := _startable(waiting, list(working.values()))):
                waiting.remove(run)
                working[_started(run, runs)] = run
            interrupts.check()
            time.sleep(_LOOK_SECONDS)
            for process, run in list(working.items()):
                alive, curves[run] = process.is_alive(), _curve(run)
                if alive:
                    continue
                del working[process]
                if not run.finished:
                    faults[f"{run.arm}, seed {run.seed}"] = run.fault()
                    note = f"{run.arm}, seed {run.seed} failed and the others go on: {run.fault()}"
                    yield Progress("sweep", told, total, note=note)
            if (taken := sum(map(len, curves.values()))) != told:
                told = taken
                last = [curve[-1] for curve in curves.values() if curve]
                yield Progress("sweep", taken, total, {"rewards/success/mean": sum(last) / len(last)})
    finally:
        _end(list(working))
    return faults


def _startable(waiting: Sequence[Planned], working: Sequence[Planned]) -> Planned | None:
    """The first whose start is there or is not being raised for another."""
    busy = [run.raised for run in working if run.raised is not None and not (run.folder / "start").is_dir()]
    return next((run for run in waiting if run.raised not in busy), None)


def _started(run: Planned, runs: Sequence[Planned]) -> BaseProcess:
    if not run.begun:
        start = run.folder / "start"
        raised = (one.folder / "start" for one in runs if one.raised is not None and one.raised == run.raised)
        if not start.is_dir() and (other := next((one for one in raised if one.is_dir()), None)):
            run.folder.mkdir(parents=True, exist_ok=True)
            with whole_folder(start) as copy:
                shutil.copytree(other, copy, dirs_exist_ok=True)
    Run(run.folder, run.config).close()  # Its config stands there now, and an older one is held against it.
    # Spawned: what a process was forked from may hold threads and a GPU.
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(str(run.folder),))
    process.start()
    return process


def _curve(run: Planned) -> list[float]:
    return Run.read(run.folder).curve if run.begun else []


def _end(working: Sequence[BaseProcess]) -> None:
    """Have each end its step and write a checkpoint; who interrupts this as well ends them at once."""
    try:
        for process in working:
            process.terminate()
        for process in working:
            process.join()
    except BaseException:
        for process in working:
            process.kill()
        raise


def _work(folder: str) -> None:
    """In a process of its own: take the run in a folder to its end."""
    die_with_parent()
    os.setpgrp()  # Ctrl-C is for the sweep, which then asks each run to end, once.
    with (Path(folder) / "log.txt").open("a", encoding="utf-8") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        try:
            with Interrupts() as interrupts, Run.reopened(Path(folder)) as run:
                for progress in train(run, interrupts):
                    if progress.note:
                        print(progress.note, file=log, flush=True)
        except Interrupted as stop:
            sys.exit(128 + stop.number)
        except PalaestraError as error:
            print(f"{type(error).__name__}: {error}", file=log, flush=True)
            sys.exit(2)
