"""`palaestra sft FILE... --model NAME`: train a model to imitate recorded episodes, as `palaestra collect` writes them.

`palaestra sft --resume RUN` resumes a run that was interrupted, killed or stopped by an error. Left out: choosing
episodes. All episodes of the files are imitated; those that cannot be imitated are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from palaestra.cli.display import show_line
from palaestra.cli.ids import import_allowed
from palaestra.cli.run_settings import RunOptions, named_options, option_value, with_settings
from palaestra.cli.running import train_to_end, understood
from palaestra.errors import UsageError
from palaestra.trainers.config.sft_config import SFTConfig, tiny_sft_config
from palaestra.trainers.run.folder import Run, fresh_folder
from palaestra.trainers.run.saved_config import read_config, trusted
from palaestra.trainers.run.tracking import require_trackers
from palaestra.trainers.scale.ranks import require_alone
from palaestra.trainers.validation import changed


@dataclass(frozen=True)
class SFTOptions(RunOptions):
    """Imitate recorded episodes: train on the agent's turns, given the messages before each turn.

    The defaults shown are the tiny agent's; with --model they are those of GRPO-TCR's authors.
    """

    config: Annotated[SFTConfig, tyro.conf.arg(name="")]


def parse(arguments: Sequence[str]) -> SFTOptions:
    """Return the options. Their defaults fit the model that is named, or are those of the run that is resumed."""
    arguments, positional = with_settings(arguments, SFTOptions)
    prog, resumed = "palaestra sft", option_value(arguments, "--resume")
    if not resumed:
        model = option_value(arguments, "--model", "-m") or "tiny"
        config = tiny_sft_config() if model == "tiny" else SFTConfig(model=model)
        return understood(SFTOptions(changed(config, positional)), arguments, prog)
    saved = read_config(Path(resumed))
    if not isinstance(saved, SFTConfig):
        raise UsageError(f"{resumed} holds a run of the kind {saved.KIND}; go on with it by palaestra train")
    default = changed(replace(saved, track=()), positional)
    options = understood(SFTOptions(default), arguments, prog)
    trusted(Path(resumed), saved, options.config, named_options(arguments))
    return options if options.config.files else replace(options, config=replace(options.config, files=saved.files))


def run(arguments: Sequence[str]) -> int:
    """Train the model by imitation, and save it."""
    require_alone("palaestra sft")
    options, console = parse(arguments), Console()
    import_allowed(options.allow_code)

    def opened() -> tuple[Run, None]:
        if options.resume is not None:
            return Run.reopened(options.resume, options.config), None
        require_trackers(options.config.track)
        return Run.create(options.run or fresh_folder(f"sft-{Path(options.config.model).name}"), options.config), None

    def show(record: Run) -> None:
        first, last = (record.summary[name] for name in ("loss_first", "loss_last"))
        if first is not None and last is not None:  # None if the step was skipped.
            show_line(console, f"loss a token: {first:.3f} at first, {last:.3f} at last")
        show_line(console, f"model and figures: {record.folder}")

    return train_to_end("sft", opened, show, options.json, resumed=options.resume is not None)
