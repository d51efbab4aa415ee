"""The short help of a command that trains a run: its main options, each with the first sentence of its text.

Left out: the other settings, which `--help-all` shows.
"""

import ast
import inspect
import re
import shutil
import textwrap
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro

from palaestra.cli.run_settings import Setting, settings_by_name
from palaestra.trainers.validation import flat, plain

MAIN = {
    "env": ("env_id", "env_options", "curated", "train_seats"),
    "recipe": ("aggregation", "entropy_coef"),
    "recipe.shaping": ("max_completion_length", "tool_bonus"),
    "recipe.advantage": ("scale_rewards",),
    "recipe.loss": ("epsilon", "epsilon_high"),
    "recipe.kl": ("beta",),
    "play": (
        *("num_prompts", "num_generations", "temperature", "max_turn_tokens", "max_episode_tokens", "slots"),
        *("ordered", "max_staleness"),
    ),
    "engine": ("kind", "urls"),
    "optimizer": ("learning_rate", "lr_schedule", "num_mini_batches", "num_iterations", "micro_batch_tokens"),
    "scale": ("precision", "lora_r"),
    "save": ("checkpoint_every", "recorded_groups"),
    "eval": ("eval_steps", "early_stopping_patience"),
}
"""The settings that `--help` shows, by section. It shows the options without a section but for uncommon ones."""
_UNCOMMON = ("collapse", "chat_template", "system")
_COLUMN = 36


def is_main(path: str) -> bool:
    """Return whether `--help` shows a setting, such as `play.num_prompts`."""
    section, _, name = path.rpartition(".")
    return name in MAIN.get(section, ()) if section else name not in _UNCOMMON


def short_help(default: Any, prog: str, about: str | None) -> str:
    """Return the help of a command whose options have these defaults, as wide as the terminal."""
    values = {name.removeprefix("config.").removesuffix(".name"): value for name, value in flat(plain(default)).items()}
    by_name = settings_by_name(type(default))
    settings = [(by_name[name], value) for name, value in values.items() if name in by_name]
    positional = [(setting, value) for setting, value in settings if setting.positional]
    sections: dict[str, list[str]] = {}
    for setting, value in sorted(settings, key=lambda pair: "." in pair[0].name):
        if is_main(setting.path) and not setting.positional:
            section = setting.name.partition(".")[0] if "." in setting.name else ""
            sections.setdefault(section, []).extend(_lines(_invocation(setting), setting, value))
    usage = [f"usage: {prog} [OPTIONS] {_metavar(setting.annotation)}" for setting, _ in positional]
    arguments = [_lines(_metavar(setting.annotation), setting, value) for setting, value in positional]
    hidden = sum(not is_main(setting.path) for setting, _ in settings)
    closing = f"{hidden} more settings go by --set NAME=VALUE or a --config FILE; --help-all shows them too."
    paragraphs = (about or inspect.getdoc(type(default)) or "").split("\n\n")
    description = [textwrap.wrap(paragraph, _columns()) for paragraph in paragraphs]
    blocks = [usage, *description, *arguments, *sections.values(), textwrap.wrap(closing, _columns())]
    return "\n\n".join("\n".join(block) for block in blocks)


@cache
def field_texts(kind: type) -> dict[str, str]:
    """Return the text under each field of a class and of the dataclasses that it extends, from their source code."""
    texts: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if base is kind or is_dataclass(base)]):
        (definition,) = ast.parse(inspect.getsource(base)).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in pairwise(definition.body):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                texts[ast.unparse(statement.target)] = " ".join(str(ast.literal_eval(following.value)).split())
    return texts


def _lines(invocation: str, setting: Setting, value: Any) -> list[str]:
    """Return the lines of one option: what to type, the first sentence of its text, and its default."""
    text = field_texts(setting.owner).get(setting.field, "")
    text = next((marker.help for marker in get_args(setting.annotation) if getattr(marker, "help", None)), text)
    text = re.split(r"(?<=\.)\s+(?=[A-Z`])", text)[0]
    if value not in (None, "", [], tyro.MISSING):
        text += f" (default: {' '.join(map(str, value)) if isinstance(value, list) else value})"
    lines = textwrap.wrap(text, max(20, _columns() - _COLUMN), break_on_hyphens=False)
    indent = " " * _COLUMN
    first = f"  {invocation}"
    if len(first) < _COLUMN:
        return [first.ljust(_COLUMN) + lines[0], *(indent + line for line in lines[1:])]
    return [first, *(indent + line for line in lines)]


def _invocation(setting: Setting) -> str:
    """Return an option as it is typed, with a placeholder for its value."""
    if setting.annotation is bool:
        return f"{setting.flag}, {setting.words(False)[0]}"
    aliases = [alias for marker in get_args(setting.annotation) for alias in getattr(marker, "aliases", None) or ()]
    flag = next((alias for alias in aliases if alias.startswith("--")), setting.flag)
    return f"{flag} {_metavar(setting.annotation)}"


def _metavar(annotation: Any) -> str:
    """Return the placeholder for a value of this type."""
    inner, *markers = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if metavar := next((marker.metavar for marker in markers if getattr(marker, "metavar", None)), None):
        return str(metavar)
    if get_origin(inner) in (Union, UnionType):
        return _metavar(next(kind for kind in get_args(inner) if kind is not NoneType))
    if get_origin(inner) is Literal:
        return "{" + ",".join(map(str, get_args(inner))) + "}"
    if get_origin(inner) is tuple:
        item = _metavar(get_args(inner)[0])
        return item if tyro.conf.UseAppendAction in markers else f"{item} ..."
    return "{True,False}" if inner is bool else str(inner.__name__).upper()


def _columns() -> int:
    """Return the number of columns to use: the width of the terminal, at most 120."""
    return min(shutil.get_terminal_size().columns, 120)
