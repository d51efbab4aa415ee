"""Run a grid of settings over seeds: ordinary runs in one folder, each in its own process, several in parallel.

    FOLDER/ARM/seed-0/     a run, as `palaestra train` leaves it, and log.txt with its output

Finished runs are not repeated, and others resume from their newest checkpoint. So the same call resumes a sweep that
was stopped or killed, and more arms or seeds extend it. A failed run does not end the others. Tiny agents with equal
cold-start settings are trained once and share their initial weights. Left out: comparing arms (`view.compare_groups`).
"""

import multiprocessing
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from palaestra.errors import PalaestraError, UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.experiments.controls import die_with_parent
from palaestra.trainers.run.atomic_files import whole_folder
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.interrupts import Interrupted, Interrupts
from palaestra.trainers.run.progress import OnProgress, Progress, ignore
from palaestra.trainers.run.saved_config import agreed, read_config, settled
from palaestra.trainers.setup.open_run import check, limits
from palaestra.trainers.training import train

MOST_RUNS = 1000
_LOOK_SECONDS = 0.5
_LONGEST_FAULT = 300


@dataclass(frozen=True, eq=False)
class Planned:
    """A run of a sweep."""

    arm: str
    seed: int
    config: GRPOConfig
    folder: Path

    @property
    def exists(self) -> bool:
        """Return whether the folder holds a run."""
        return (self.folder / "config.json").exists()

    @property
    def finished(self) -> bool:
        """Return whether the run is finished."""
        return self.exists and Run.read(self.folder).summary.get("steps") == self.config.steps

    @property
    def raised(self) -> Hashable:
        """Return the settings that the cold start depends on; None for a model that is loaded."""
        config = self.config
        if not config.cold_started:
            return None
        play = config.play
        return (
            config.model,
            config.env,
            config.seed,
            config.cold_start,
            limits(config),
            play.slots,
            play.ordered,
            config.device,
        )

    def fault(self) -> str:
        """Return the last line of the run's log, with its path."""
        log = self.folder / "log.txt"
        log_lines = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
        return f"{log_lines[-1][:_LONGEST_FAULT] if log_lines else 'it said nothing'} ({log})"


def planned(arms: Mapping[str, GRPOConfig], seeds: Sequence[int], folder: Path) -> list[Planned]:
    """Return the runs of a sweep, arm by arm. Raise an error for one that cannot work, before any run begins."""
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
        if run.exists:
            saved = read_config(run.folder)
            agreed(saved, settled(saved, run.config), run.folder)
    return runs


def sweep(
    runs: Sequence[Planned],
    at_once: int = 1,
    interrupts: Interrupts | None = None,
    on_progress: OnProgress = ignore,
) -> dict[str, str]:
    """Take all runs to their end, `at_once` in parallel, and report the total number of steps taken. Return the faults
    of failed runs, by arm and seed.

    On an interrupt or an error, every running process finishes its step and saves a checkpoint.
    """
    interrupts = interrupts or Interrupts()
    pending = deque(run for run in runs if not run.finished)
    working: dict[BaseProcess, Planned] = {}
    faults: dict[str, str] = {}
    curves = {run: _curve(run) for run in runs}
    total, reported_steps = sum(run.config.steps for run in runs), 0
    if len(pending) < len(runs):
        note = f"{len(runs) - len(pending)} of {len(runs)} runs are finished already"
        on_progress(Progress("sweep", 0, total, note=note))
    try:
        while pending or working:
            while len(working) < at_once and (run := _startable(pending, list(working.values()))):
                pending.remove(run)
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
                    on_progress(Progress("sweep", reported_steps, total, note=note))
            if (steps_taken := sum(map(len, curves.values()))) != reported_steps:
                reported_steps = steps_taken
                last = [curve[-1] for curve in curves.values() if curve]
                on_progress(Progress("sweep", steps_taken, total, {"rewards/success/mean": sum(last) / len(last)}))
    finally:
        _end(list(working))
    return faults


def _startable(waiting: Sequence[Planned], working: Sequence[Planned]) -> Planned | None:
    """Return the first waiting run whose cold start no working run is making now; None if there is no such run."""
    busy = [run.raised for run in working if run.raised is not None and not (run.folder / "start").is_dir()]
    return next((run for run in waiting if run.raised not in busy), None)


def _started(run: Planned, runs: Sequence[Planned]) -> BaseProcess:
    if not run.exists:
        start = run.folder / "start"
        equal_runs = [other for other in runs if other.raised is not None and other.raised == run.raised]
        starts = [other.folder / "start" for other in equal_runs if (other.folder / "start").is_dir()]
        if starts and not start.is_dir():
            run.folder.mkdir(parents=True, exist_ok=True)
            with whole_folder(start) as copy:
                shutil.copytree(starts[0], copy, dirs_exist_ok=True)
    Run(run.folder, run.config).close()  # This saves the config, or compares it with an older one.
    # Spawn, because the parent may hold threads and a GPU.
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(str(run.folder), run.config))
    process.start()
    return process


def _curve(run: Planned) -> list[float]:
    return Run.read(run.folder).curve if run.exists else []


def _end(working: Sequence[BaseProcess]) -> None:
    """Let each process finish its step and save a checkpoint. A second interrupt kills them at once."""
    try:
        for process in working:
            process.terminate()
        for process in working:
            process.join()
    except BaseException:
        for process in working:
            process.kill()
        raise


def _work(folder: str, config: GRPOConfig) -> None:
    """Take the run in a folder to its end, in a child process."""
    die_with_parent()
    os.setpgrp()  # Ctrl-C goes only to the sweep, which then terminates each run once.
    with (Path(folder) / "log.txt").open("a", encoding="utf-8") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        try:
            with Interrupts() as interrupts, Run.reopened(Path(folder), config) as run:

                def write_note(progress: Progress) -> None:
                    if progress.note:
                        print(progress.note, file=log, flush=True)

                deque(train(run, interrupts=interrupts, on_progress=write_note), 0)
        except Interrupted as stop:
            sys.exit(128 + stop.number)
        except PalaestraError as error:
            print(f"{type(error).__name__}: {error}", file=log, flush=True)
            sys.exit(2)
