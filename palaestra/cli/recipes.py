"""`palaestra recipes`: show the presets of the algorithm, or one with the source of each value; and all parts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import table
from palaestra.cli.output import Reported, reporting
from palaestra.errors import UsageError
from palaestra.trainers.config.paper_runs import NOT_SET, RUNS
from palaestra.trainers.config.recipe_sources import SHORT, apart, sourced
from palaestra.trainers.config.recipes import RECIPES, Recipe, find_recipe
from palaestra.trainers.validation import PARTS, plain


@dataclass(frozen=True)
class RecipesOptions(Reported):
    """Show the presets of the algorithm."""

    name: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]", help_behavior_hint="")
    ] = ()
    """One of them, with every value and its source."""

    def __post_init__(self) -> None:
        if len(self.name) > 1:
            raise UsageError(
                f"{len(self.name)} recipes are named: {', '.join(self.name)}; name one to see it whole, or none to see "
                "how each differs from the default"
            )


def run(arguments: Sequence[str]) -> int:
    """Print how each preset differs from the default, or one preset with all its values; then the built-in parts."""
    options, console = tyro.cli(RecipesOptions, args=list(arguments), prog="palaestra recipes"), Console()
    with reporting(options.json) as figures:
        for name in options.name:
            find_recipe(name)  # Raises an error that names the closest.
            figures |= _print_recipe(name, console)
        if not options.name:
            figures |= {name: plain(recipe) for name, recipe in RECIPES.items()}
            console.print(
                table("Recipes", {name: (_apart(name),) for name in RECIPES}, ("beside grpo-tcr",), justify="left")
            )
            for part, field in Recipe.__dataclass_fields__.items():
                if built_in := field.metadata.get(PARTS):
                    console.print(f"--recipe.{part}: {', '.join(built_in)}", highlight=False, soft_wrap=True)
    return 0


def _print_recipe(name: str, console: Console) -> dict[str, Any]:
    """Print the values of a recipe that a source gives or that were inferred, what the words of a source mean, and the
    defaults beside them. Return all as figures.
    """
    of_run = [(key, value, source) for key, (value, source) in RUNS.get(name, {}).items()]
    values = {_option(key): (str(value), source) for key, value, source in sourced(name)}
    rows = {option: both for option, both in values.items() if both[1]}
    rows |= {f"--{key.replace('_', '-')}": (str(value), source) for key, value, source in of_run}
    rows |= {what: (str(value), source) for what, (value, source) in NOT_SET.get(name, {}).items()}
    recipe_table = table(f"Recipe {name}", rows, ("value", "source"), justify="left")
    recipe_table.columns[0].no_wrap = True  # An option that is broken in two can neither be copied nor found.
    console.print(recipe_table)
    sources = "; ".join(source for _, source in rows.values())
    defaults = "; ".join(f"{option} {value}" for option, (value, source) in values.items() if not source)
    notes = [meaning for pattern, meaning in SHORT.items() if re.search(pattern, sources)]
    for text in (*notes, f"Defaults of which its sources say nothing: {defaults}"):
        console.print(text, highlight=False, soft_wrap=True)
    return {key: {"value": value, "source": source} for key, value, source in (*sourced(name), *of_run)}


def _option(key: str) -> str:
    """Return the command-line option that sets a value of a recipe."""
    return f"--recipe.{key.removesuffix('.name').replace('_', '-')}"


def _apart(name: str) -> str:
    """Return the differences of a preset from the default."""
    return ", ".join(apart(RECIPES[name], RECIPES["grpo-tcr"])) or "the default"
