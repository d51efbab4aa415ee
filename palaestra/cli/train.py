"""`palaestra train ID`: GRPO on the tiny agent or on a model from disk or hub, into a run folder that survives.

`palaestra train --resume RUN` goes on with a run that was interrupted, killed or stopped by an error.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from palaestra.cli.blame import blaming
from palaestra.cli.display import show_line, watch
from palaestra.cli.ids import resolve
from palaestra.errors import PalaestraError, UsageError
from palaestra.trainers.config import GRPOConfig, tiny_config
from palaestra.trainers.interrupts import Interrupted, Interrupts
from palaestra.trainers.resume import read_config

if TYPE_CHECKING:
    from palaestra.agents.local_model import LocalModel
    from palaestra.trainers.run import Run

_HELD_BACK = "\nthis step ends first, then a checkpoint is written; Ctrl-C again ends at once, without it\n"


@dataclass(frozen=True)
class Options:
    """Train an agent with GRPO. Without --model it is the built-in tiny one.

    The defaults shown are the tiny agent's; with --model they are those of GRPO-TCR's authors.
    """

    config: Annotated[GRPOConfig, tyro.conf.arg(name="")]
    run: Path | None = None
    """Folder for the results; runs/NAME by default."""
    resume: Path | None = None
    """Go on with the run in this folder; it knows its environment and options."""

    def __post_init__(self) -> None:
        if self.run is not None and self.resume is not None:
            raise UsageError("--resume names the folder already; leave out --run")


def parse(arguments: Sequence[str], prog: str, about: str | None = None) -> Options:
    """Options whose defaults fit the model that is asked for; `about` is what `--help` says in place of train's.

    Those of a run that is gone on with are the defaults then: what differs from them was asked for.
    """
    resumed, model = option_value(arguments, "--resume"), option_value(arguments, "--model")
    if resumed:
        default = read_config(Path(resumed))
    else:
        default = tiny_config(tyro.MISSING) if model in (None, "tiny") else GRPOConfig(tyro.MISSING)
    options = tyro.cli(Options, args=list(arguments), prog=prog, description=about, default=Options(default))
    return replace(options, config=replace(options.config, env_id=resolve(options.config.env_id)))


def run(arguments: Sequence[str]) -> int:
    """Train, measure before and after, export the model."""
    options, console = parse(arguments, "palaestra train"), Console()
    with Interrupts(_HELD_BACK) as interrupts:
        try:
            record, opened = _opened(options)
        except Interrupted as stop:
            print("\ninterrupted before anything was done", file=sys.stderr)
            return 128 + stop.number
        with record:
            if record.finished:
                console.print(f"{record.folder} is finished: {record.config.steps} steps", soft_wrap=True)
                return 0
            try:
                with blaming():
                    _train(record, opened, interrupts, console)
            except Interrupted as stop:
                print(f"\ninterrupted; {_way_on(record.folder)}", file=sys.stderr)
                return 128 + stop.number
            except PalaestraError as error:
                if options.resume is None and record.withdraw():
                    raise  # There is nothing to go on with, and the corrected command shall find the name free.
                print(f"palaestra train: {error}\n{_way_on(record.folder)}", file=sys.stderr)
                return 2
    return 0


def _opened(options: Options) -> "tuple[Run, LocalModel | None]":
    """The run's folder. What cannot work is refused before one is made."""
    config = options.config
    from palaestra.agents.local_model import find_device
    from palaestra.registry import demonstrator
    from palaestra.trainers.lesson import check_environment, open_model
    from palaestra.trainers.run import Run, fresh_folder

    find_device(config.device)
    if options.resume is not None:
        return Run.reopened(options.resume, config), None
    if config.model == "tiny":
        demonstrator(config.env_id)
    check_environment(config)
    opened = None if config.model == "tiny" else open_model(config.model, config)
    return Run(options.run or fresh_folder(config.env_id.split("/")[-1].lower()), config), opened


def _train(record: "Run", opened: "LocalModel | None", interrupts: Interrupts, console: Console) -> None:
    from palaestra.cli.results import result_table
    from palaestra.trainers.lesson import keep_model, measure, measure_before, open_arena, practise, prepare

    learner = watch(prepare(record, opened), console)
    if learner.step:
        console.print(f"going on after step {learner.step} of {record.config.steps}", highlight=False)
    before = measure_before(record, learner)
    for note in record.notes:
        show_line(console, note, "yellow")
    practice = open_arena(record.config)
    try:
        watch(practise(record, learner, practice, interrupts), console)
    finally:
        practice.close()
    after = measure(record, learner.agent, "after")
    keep_model(record, learner)
    measured = {"before": before, "after": after} if before is not None else {"after": after}
    figures = {name: both.figures() for name, both in measured.items()}
    record.finish({**figures, "curve": record.curve})
    console.print(result_table(f"Success on held-out tasks of {record.config.env_id}", measured))
    console.print(f"model and figures: {record.folder}", soft_wrap=True)


def _way_on(folder: Path) -> str:
    """One line: what is safe, and how to go on."""
    from palaestra.trainers.checkpoint import last_step

    step = last_step(folder / "checkpoints")
    safe = "no step is saved yet" if step is None else f"step {step} is saved"
    return f"{safe}; go on with: palaestra train --resume {shlex.quote(str(folder))}"


def option_value(arguments: Sequence[str], *spellings: str) -> str | None:
    """What an option is given on the command line, the last time it is named; other defaults depend on it."""
    named = [
        argument.partition("=")[2] or following
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=False)
        if argument.partition("=")[0] in spellings
    ]
    return named[-1] if named else None
