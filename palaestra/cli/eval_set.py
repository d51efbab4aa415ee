"""`palaestra eval-set FILE`: measure several models in several environments, and compare them in one report.

    FOLDER/ENVIRONMENT-MODEL.jsonl        episodes, as `eval --save` writes them, and beside them the figures
    FOLDER/report.html                    success with intervals, and each model's difference to the first one

The same command again plays only what is missing. Left out: playing (`eval`), and the page (`eval_set_page`).
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from palaestra.cli.display import note, show_line, table
from palaestra.cli.eval import evaluate_agents
from palaestra.cli.eval_file import settings_of
from palaestra.cli.eval_options import EvalOptions
from palaestra.cli.eval_set_page import comparisons, difference_text, measurements, page, success_text
from palaestra.cli.ids import resolve_all
from palaestra.cli.output import Reported, run_reported
from palaestra.errors import PalaestraError, UsageError
from palaestra.reading import parsed_json, regular_text
from palaestra.trainers.run.atomic_files import write_text

_SECTIONS = ("environment", "model")
_EXPECTED = 'expected [[environment]] with env_id = "two-hop", [[model]] with model = "demonstrator", and [options]'


@dataclass(frozen=True, kw_only=True)
class EvalSetOptions(Reported):
    """Measure several models in several environments, and compare them in one HTML report. The same command again
    goes on where the last one was stopped."""

    file: Annotated[Path, tyro.conf.Positional]
    """TOML file with a table [[environment]] for each environment, [[model]] for each model, and [options] for all:
    the options of `palaestra eval`, with underscores, and `name` for the report."""
    out: Path | None = None
    """Folder for the episodes and the report; by default runs/FILE."""


@dataclass(frozen=True)
class ModelInEnvironment:
    """A model in an environment."""

    environment: str
    model: str
    options: EvalOptions
    save: Path

    @property
    def figures_file(self) -> Path:
        """File with the figures of a whole evaluation and its settings."""
        return self.save.with_suffix(".figures.json")

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide the episodes."""
        settings = settings_of(self.options, resolve_all(self.options.env_id), True)
        plain: dict[str, Any] = json.loads(json.dumps(settings))
        return plain

    def finished(self) -> dict[str, Any] | None:
        """Return the figures if an earlier call has measured all of it with these settings."""
        if not self.figures_file.exists():
            return None
        try:
            content = parsed_json(regular_text(self.figures_file))
        except (OSError, ValueError):
            return None
        whole = isinstance(content, dict) and content.get("settings") == self.settings()
        return content["figures"] if whole else None

    def measure(self) -> dict[str, Any]:
        """Play what is missing and return the figures. Those of a whole evaluation are kept."""
        figures: dict[str, Any] = {}
        evaluate_agents(True, self.options, figures)
        if all(not part["broken"] and not part["stopped"] for part in measurements(figures).values()):
            write_text(self.figures_file, json.dumps({"settings": self.settings(), "figures": figures}) + "\n")
        return figures


def run(arguments: Sequence[str]) -> int:
    """Measure every model in every environment. Return 1 if one of them failed."""
    return run_reported(EvalSetOptions, "eval-set", arguments, _evaluate_set)


def cells_of(path: Path, folder: Path) -> list[ModelInEnvironment]:
    """Return the evaluations that a file asks for. Raise a UsageError if one of them cannot work."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as TOML ({error}); {_EXPECTED}") from error
    common, tables = content.pop("options", {}), [content.pop(name, None) for name in _SECTIONS]
    if content or not isinstance(common, dict) or not all(isinstance(rows, list) and rows for rows in tables):
        raise UsageError(f"{path} has the tables {', '.join([*content]) or 'of neither kind'}; {_EXPECTED}")
    pairs_by_section = [
        [(_name(row, path), {k: v for k, v in row.items() if k != "name"}) for row in rows] for rows in tables
    ]
    cells, files = [], set()
    for environment, env_options in pairs_by_section[0]:
        for model, model_options in pairs_by_section[1]:
            save = folder / (re.sub(r"[^\w.+-]+", "_", f"{environment}-{model}") + ".jsonl")
            if save in files:
                raise UsageError(f"{path}: {environment} and {model} are there twice; give each a name of its own")
            files.add(save)
            words = _words({**common, **env_options, **model_options, "save": str(save)}, path)
            options = tyro.cli(EvalOptions, args=words, prog=f"{path}: {environment}, {model}: palaestra eval")
            cells.append(ModelInEnvironment(environment, model, options, save))
    return cells


def _name(row: Mapping[str, Any], path: Path) -> str:
    name = row.get("name") or row.get("env_id") or row.get("model")
    if not name:
        raise UsageError(f"{path}: a table names no env_id or model; {_EXPECTED}")
    return " ".join(name) if isinstance(name, list) else str(name)


def _words(options: Mapping[str, Any], path: Path) -> list[str]:
    """Return options as the words of a command line, the environment's id first."""
    if "env_id" not in options:
        raise UsageError(f"{path}: an [[environment]] has no env_id; {_EXPECTED}")
    first = options["env_id"]
    words = [str(word) for word in (first if isinstance(first, list) else [first])]
    for key, value in options.items():
        flag = key.replace("_", "-")
        if key == "env_id":
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def _evaluate_set(options: EvalSetOptions, figures: dict[str, Any]) -> int:
    folder, console = options.out or Path("runs") / options.file.stem, Console()
    folder.mkdir(parents=True, exist_ok=True)
    measured: dict[tuple[str, str], dict[str, Any]] = {}
    failed: dict[tuple[str, str], str] = {}
    cells = cells_of(options.file, folder)
    report = partial(page, options.file.name, [(cell.environment, cell.model) for cell in cells])
    for number, cell in enumerate(cells, start=1):
        key, title = (cell.environment, cell.model), f"{number}/{len(cells)}: {cell.model} in {cell.environment}"
        try:
            finished = cell.finished()
            note(f"{title} was measured before" if finished else title)
            measured[key] = finished or cell.measure()
        except PalaestraError as error:
            failed[key] = str(error)
            note(f"{title} failed, and the others go on: {error}")
        write_text(folder / "report.html", report(measured, failed))
    rows = {}
    for (environment, model), agent in measured.items():
        for what, part in measurements(agent).items():
            difference = comparisons(measured, environment, model, cells[0].model).get(what)
            rows[f"{environment}, {model}, {what}"] = (success_text(part), difference_text(difference))
    console.print(table("", rows, ("success, 95 %", "less the first")))
    show_line(console, f"report: {folder / 'report.html'}")
    figures["cells"] = [{**cell, "environment_name": key[0], "model_name": key[1]} for key, cell in measured.items()]
    figures["failed"] = {", ".join(key): fault for key, fault in failed.items()}
    return 1 if failed else 0
