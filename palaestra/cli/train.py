"""`palaestra train ID`: train the tiny agent, or a model from disk or hub, with GRPO; a run folder holds the results.

`palaestra train --resume RUN` resumes a run that was interrupted, killed or stopped by an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from palaestra.cli.ids import import_allowed, resolve_all
from palaestra.cli.run_settings import RunOptions, named_options, option_value, with_settings
from palaestra.cli.running import train_to_end, understood
from palaestra.errors import UsageError
from palaestra.registry import require_loaded
from palaestra.trainers.config.grpo_config import GRPOConfig, grpo_config, laptop_config, tiny_config
from palaestra.trainers.config.recipes import RECIPES, Recipe, find_recipe
from palaestra.trainers.losses.kl import KL
from palaestra.trainers.parts import load_allowed
from palaestra.trainers.run.folder import Run, fresh_folder
from palaestra.trainers.run.saved_config import read_config, trusted
from palaestra.trainers.validation import PARTS, changed, plain

Preset = Literal["tiny", "laptop", "authors"]
PRESETS = {"tiny": tiny_config, "laptop": laptop_config, "authors": grpo_config}
"""Functions by name that return the default settings of a run."""


@dataclass(frozen=True)
class TrainOptions(RunOptions):
    """Train an agent with GRPO. Without --model it is the built-in tiny one.

    The defaults shown are the tiny agent's; with --model they are those of the recipe's authors.
    """

    config: Annotated[GRPOConfig, tyro.conf.arg(name="")]
    preset: Preset | None = None
    """Set of defaults; `laptop` is for a small pretrained model."""
    recipe: Annotated[
        str,
        tyro.conf.arg(
            help="Preset of the algorithm (see `palaestra recipes`); --recipe.PART NAME changes a part of it: "
            f"{', '.join(RECIPES)}."
        ),
    ] = "grpo-tcr"


def parse(
    arguments: Sequence[str],
    prog: str,
    about: str | None = None,
    kind: type[TrainOptions] = TrainOptions,
    default_preset: Preset = "authors",
) -> TrainOptions:
    """Return the options. Their defaults fit the model, the recipe and its parts that are named. `about` replaces the
    text of `--help`; `kind` may have further options; `default_preset` holds for a model that is named.

    For a run that is resumed, its saved options are the defaults: an option that differs was named by the user.
    """
    arguments, positional = with_settings(arguments, kind)
    resumed, preset = option_value(arguments, "--resume"), option_value(arguments, "--preset")
    requested_recipe = option_value(arguments, "--recipe")
    recipe_name = requested_recipe or "grpo-tcr"
    saved = read_config(Path(resumed)) if resumed else None
    if saved is not None:
        if not isinstance(saved, GRPOConfig):
            raise UsageError(f"{resumed} holds a run of the kind {saved.KIND}; go on with it by palaestra {saved.KIND}")
        config = replace(saved, track=())  # Otherwise named trackers would be added to the saved ones.
        if requested_recipe not in (None, config.recipe.recipe_name):
            config = replace(config, recipe=find_recipe(recipe_name))
        recipe_name = config.recipe.recipe_name
    else:
        config = _preset_config(preset, option_value(arguments, "--model"), default_preset)(tyro.MISSING, recipe_name)
    config = changed(config, positional)
    recipe, remaining = _with_parts(config.recipe, arguments)
    default = kind(config=replace(config, recipe=recipe), recipe=recipe_name)
    markers = (tyro.conf.AvoidSubcommands, tyro.conf.CascadeSubcommandArgs)
    options = understood(default, remaining, prog, about, markers)
    import_allowed(options.allow_code)
    requested, env = options.config, options.config.env
    if saved is not None:
        recipe = changed(requested.recipe, plain(requested.recipe), load_allowed(options.allow_code))
        requested = replace(requested, recipe=recipe)
    if saved is not None and env.env_id == saved.env.env_id:  # Only the saved file named it.
        require_loaded(env.env_id, f"{resumed}/config.json")
    requested = replace(requested, env=replace(env, env_id=resolve_all(env.env_id)))
    if saved is None:
        return replace(options, config=requested)
    resolved = trusted(Path(str(resumed)), saved, requested, named_options(arguments))
    assert isinstance(resolved, GRPOConfig), "it is of the kind that was asked for"
    return replace(options, config=resolved)


def _preset_config(preset: str | None, model: str | None, default: Preset) -> Callable[..., GRPOConfig]:
    """Return the function that makes the config of a preset, by default that of the model."""
    name = preset or ("tiny" if model in (None, "tiny") else default)
    return PRESETS.get(name, grpo_config)  # Another name is refused with the other options.


def run(arguments: Sequence[str]) -> int:
    """Train an agent, measure it before and after, and export its model."""
    options, console = parse(arguments, "palaestra train"), Console()
    # Only now: they import torch, and `--help` needs none.
    from palaestra.cli.results import result_table, shares_table
    from palaestra.trainers.evaluation.during_training import recalled
    from palaestra.trainers.run.tracking import require_trackers
    from palaestra.trainers.scale.ranks import joined
    from palaestra.trainers.setup.open_run import check, check_judge, check_ranks, open_model, settled

    def opened() -> "tuple[Run, object]":
        """Open the run's folder. Return the run, and its model or None.

        Raise an error first for a config that cannot work.
        """
        if not ranks.first:
            return Run(ranks.broadcast(Path), options.config, rank=ranks.rank), None
        new_run, local = begun(options.config)
        ranks.broadcast(lambda: new_run.folder)
        return new_run, local

    def begun(config: GRPOConfig) -> "tuple[Run, object]":
        if options.resume is not None:
            record = Run.reopened(options.resume, config)
            try:
                if not record.finished:
                    check_judge(config)
            except UsageError:
                record.close()
                raise
            return record, None
        check(config)
        require_trackers(config.track)
        folder = options.run or fresh_folder(config.env.title)
        config, note = settled(config, folder, ranks.count)
        check_ranks(config, ranks.count)
        local = None if config.model == "tiny" or ranks.count > 1 else open_model(config.model, config)
        record = Run.create(folder, config)
        record.notes += [note] if note else []
        return record, local

    def show(record: Run) -> None:
        names: list[str] = [name for name in ("before", "after") if name in record.summary]
        measured = {name: recalled(record.summary[name]) for name in names}
        if measured:
            console.print(result_table(f"Success on held-out tasks of {options.config.env.env_id}", measured))
        if shares := record.summary.get("mixture"):
            console.print(shares_table(shares))
        if best := record.summary.get("best"):
            figures = f"{best['success']:.3f} [{best['low']:.2f}, {best['high']:.2f}]"
            console.print(f"best: {figures} after step {best['step']}, {record.folder / 'best'}", soft_wrap=True)
        console.print(f"model and figures: {record.folder}", soft_wrap=True)

    with joined(options.config.scale.rank_timeout) as ranks:
        figures = options.json if ranks.first else None
        status = train_to_end("train", opened, show, figures, resumed=options.resume is not None)
        if not status:
            ranks.part()
    return status


def _with_parts(recipe: Recipe, arguments: list[str]) -> tuple[Recipe, list[str]]:
    """Return the recipe with the parts that `--recipe.PART NAME` names, and the other arguments."""
    names: dict[str, str] = {}
    for prefix, section in (("--recipe.", Recipe), ("--recipe.kl.", KL)):
        for kind in (field.name for field in fields(section) if PARTS in field.metadata):
            spellings = {f"{prefix}{kind}", f"{prefix}{kind.replace('_', '-')}"}
            if (name := option_value(arguments, *spellings)) is not None:
                names[kind] = name
                for place in reversed([i for i, text in enumerate(arguments) if text.partition("=")[0] in spellings]):
                    del arguments[place : place + (1 if "=" in arguments[place] else 2)]
    return changed(recipe, names), arguments  # At once: a recipe that is half changed may contradict itself.
