"""`palaestra sweep ID --over SETTING=VALUE,VALUE`: train a grid of settings with several seeds, and compare them.

Every option of `palaestra train` may be given, or swept over. The same command again resumes where it stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from palaestra.cli import train
from palaestra.cli.analyse import show
from palaestra.cli.display import display, note
from palaestra.cli.output import reporting, require_writable
from palaestra.cli.run_settings import option_value
from palaestra.cli.view import chosen_numbers
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig

_ABOUT = "Train a grid of settings over seeds as ordinary runs, and print one table with 95 % intervals over seeds."
_NOT_SWEPT = ("seed", "seeds", "run", "resume", "over", "json", "plot", "at-once", "config", "set")


@dataclass(frozen=True, kw_only=True)
class SweepOptions(train.TrainOptions):
    """Options of train, and those of a sweep."""

    over: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """SETTING=VALUE,VALUE: a setting of train and its values. With several settings, every combination is an arm. The
    other arms are compared with the first one."""
    seeds: str = "0-4"
    """Seeds with which each arm is run, such as 0-4 or 1,5,7."""
    at_once: int = 1
    """Number of runs trained at the same time, each with one thread."""
    plot: Path | None = None
    """File for a plot of the curves: a .png, .svg or .pdf."""
    run: Path | None = None
    """Folder for the runs; runs/sweep-NAME by default. A folder that holds runs of this sweep is resumed."""
    resume: Annotated[Path | None, tyro.conf.Suppress] = None

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise UsageError(f"at_once is {self.at_once}; it must be at least 1")
        if self.plot is not None:
            require_writable("--plot", self.plot)


def run(arguments: Sequence[str]) -> int:
    """Train the runs that are missing, then print the table. Return 1 if a run failed."""
    if option_value(arguments, "--resume") is not None:
        raise UsageError("to resume a sweep, run the same command with the same --run, without --resume")
    options = train.parse(arguments, "palaestra sweep", _ABOUT, SweepOptions)
    assert isinstance(options, SweepOptions)
    arms, seeds = _arms(options, arguments), sorted(chosen_numbers(options.seeds, "seeds") or ())
    env_id = options.config.env.env_id
    folder = options.run or Path("runs") / f"sweep-{env_id.split('/')[-1].lower()}"
    from palaestra.trainers.experiments.sweep import planned, sweep
    from palaestra.trainers.run.interrupts import Interrupted, Interrupts
    from palaestra.trainers.view import analyse
    from palaestra.trainers.view.plots import check_plot

    if options.plot is not None:
        check_plot(options.plot)
    console, runs = Console(), planned(arms, seeds, folder)
    with reporting(options.json) as figures, Interrupts() as interrupts:
        try:
            with display() as on_progress:
                faults = sweep(runs, options.at_once, interrupts, on_progress)
        except Interrupted as stop:
            Console(stderr=True).print("\ninterrupted; the same command goes on with the sweep", soft_wrap=True)
            return 128 + stop.number
        done = [arm_run.folder for arm_run in runs if arm_run.finished]
        if done:
            result = analyse(done, note)
            show(result, console, options.plot)
            figures |= {"folder": str(folder), **result.as_dict()}
        for name, fault in faults.items():
            console.print(f"{name} failed: {fault}", markup=False, highlight=False, soft_wrap=True)
        figures["failed"] = faults
    return 1 if faults else 0


def _arms(options: SweepOptions, arguments: Sequence[str]) -> dict[str, GRPOConfig]:
    """Return the config of each arm (a combination of settings) by its name, as `palaestra train` reads its options."""
    grid: list[list[tuple[str, str]]] = []
    for text in options.over:
        name, _, values = text.partition("=")
        key, choices = name.strip().lstrip("-").replace("_", "-"), [value.strip() for value in values.split(",")]
        if not key or not all(choices):
            raise UsageError(
                f"over has {text!r}; expected SETTING=VALUE,VALUE, as in recipe.loss.epsilon-high=0.2,0.28"
            )
        if key in _NOT_SWEPT:
            raise UsageError(f"over has {key!r}, which is no setting of a run; seeds are named with --seeds 0-4")
        if len(set(choices)) < len(choices):
            raise UsageError(f"over has {text!r}, in which a value stands twice")
        grid.append([(key, value) for value in choices])
    if not grid:
        raise UsageError("name what to sweep over: --over recipe.loss.epsilon-high=0.28,0.315,0.35")
    arms = {}
    for chosen in product(*grid):
        words = [word for key, value in chosen for word in (f"--{key}", value)]
        name = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in chosen)
        arms[name] = train.parse([*arguments, *words], "palaestra sweep", _ABOUT, SweepOptions).config
    return arms
