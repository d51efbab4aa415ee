"""The settings of a run, from options of the command line, from `--set NAME=VALUE` and from files (`--config FILE`).

Settings of files and of `--set` are turned into options and put before those that the user wrote, so the same rules
hold for them. For a setting that is named several times, the user's option wins, then `--set`, then the last file, then
the preset. Left out: what the options mean.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from palaestra.cli.ids import AllowsCode
from palaestra.errors import UsageError
from palaestra.trainers.validation import PARTS, flat


@dataclass(frozen=True, kw_only=True)
class RunOptions(AllowsCode):
    """The options of every command that trains a run, in addition to the settings of the run."""

    config_files: Annotated[
        tyro.conf.UseAppendAction[tuple[Path, ...]], tyro.conf.arg(name="config", metavar="FILE")
    ] = ()
    """File of settings in TOML or JSON, with or without sections. The command line overrides it; a later file overrides
    an earlier one."""
    set_values: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set", metavar="NAME=VALUE")
    ] = ()
    """Any setting, with or without its section: lora_alpha=16. It overrides files; the command line overrides it."""
    run: Path | None = None
    """Folder for the results; by default a new one in runs/."""
    resume: Path | None = None
    """Resume the run in this folder, with its own options. Modules and services that its file names (sandboxes, judges,
    servers, trackers) must be named again, as the interrupted run says."""

    def __post_init__(self) -> None:
        if self.run is not None and self.resume is not None:
            raise UsageError("--resume names the folder already; leave out --run")


@dataclass(frozen=True, slots=True)
class Setting:
    """An option of a command."""

    name: str
    """The name on the command line with its section, such as `play.num_prompts` or `env.options`."""
    annotation: Any
    """The type of its field, with the markers of tyro and pydantic."""
    owner: type
    """The class that declares it."""
    field: str
    """The name of its field in that class."""
    parts: Mapping[str, Any]
    """The classes that it may hold, by name, if it is a part of a recipe."""

    @property
    def flag(self) -> str:
        """Return the option as it is written on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def path(self) -> str:
        """Return the name in Python and in config.json with its section, such as `env.env_options`."""
        section, dot, _ = self.name.rpartition(".")
        return f"{section}{dot}{self.field}"

    @property
    def positional(self) -> bool:
        """Return whether the command line takes its value without the option's name."""
        return tyro.conf.Positional in get_args(self.annotation)

    def words(self, value: Any) -> list[str]:
        """Return a value from a file as the words that set it on the command line."""
        if value is None and self.parts:
            value = "none"
        if self.annotation is bool and str(value).lower() in ("true", "false"):
            section, dot, last = self.flag[2:].rpartition(".")
            return [f"--{section}{dot}{'' if str(value).lower() == 'true' else 'no-'}{last}"]
        if not isinstance(value, list):
            return [f"{self.flag}={value}"]
        texts = [str(item) for item in value]
        if dashed := [text for text in texts if text.startswith("-")]:
            raise UsageError(f"{self.name} has {dashed[0]!r} in a list; expected a value that begins with no dash")
        if tyro.conf.UseAppendAction in get_args(self.annotation):
            return [f"{self.flag}={text}" for text in texts]
        return [self.flag, *texts]


def settings_of(kind: type, section: str = "") -> Iterator[Setting]:
    """Yield the options of a class, also those of its sections and of each part that a recipe may have."""
    annotations = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        annotation, parts = annotations[field.name], field.metadata.get(PARTS, {})
        markers = getattr(annotation, "__metadata__", ())
        # `tyro.conf.arg` may give an option another name than its field's.
        name = next((text for marker in markers if (text := getattr(marker, "name", None)) is not None), field.name)
        inner = get_args(annotation)[0] if markers else annotation
        if not is_dataclass(inner) and tyro.conf.Suppress not in markers:
            yield Setting(section + name, annotation, kind, field.name, parts)
        for part in (inner, *parts.values()):
            if isinstance(part, type) and is_dataclass(part):
                yield from settings_of(part, f"{section}{name}." if name else "")


def settings_by_name(kind: type) -> dict[str, Setting]:
    """Return the options of a class by name: each by its option's name and by its field's name, both with the section
    and without. A name without a section that fits two options means the first.
    """
    settings: dict[str, Setting] = {}
    for setting in settings_of(kind):
        for name in (setting.name, setting.path, setting.name.rpartition(".")[2], setting.field):
            settings.setdefault(name, setting)
    return settings


def with_settings(arguments: Sequence[str], kind: type) -> tuple[list[str], dict[str, Any]]:
    """Return the arguments with the settings of `--config` and `--set` added as options before their own options.
    Also return, by field, the settings that the command line takes without a name (environment, files).
    """
    settings, command_line = settings_by_name(kind), named_options(arguments)
    for name in ("config", "config_files", "set", "set_values"):  # They name settings, but are not settings.
        del settings[name]
    contents = [(f"--config {path}", _content(Path(path))) for path in option_values(arguments, "--config")]
    contents += [(f"--set {text}", _pair(text)) for text in option_values(arguments, "--set")]
    values: dict[str, tuple[Setting, Any]] = {}
    for source, content in contents:
        for name, value in flat(content).items():
            setting = _setting(name, settings, source)
            values[setting.path] = (setting, value)
    words: list[str] = []
    positional: dict[str, Any] = {}
    for setting, value in values.values():
        if setting.positional:
            positional[setting.field] = value
        elif setting.flag[2:] not in command_line:
            words += setting.words(value)
    # A list of values ends where the next option begins.
    first = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return [*arguments[:first], *words, *arguments[first:]], positional


def _setting(name: str, settings: Mapping[str, Setting], source: str) -> Setting:
    """Return the setting of this name, with or without its section. Raise `UsageError` for an unknown one."""
    # In a run's config.json a part of the recipe has a name, and so has the recipe.
    path = name.replace("-", "_").removesuffix(".name").removesuffix(".recipe_name")
    section, _, last = path.rpartition(".")
    setting = settings.get(path) or settings.get(last)
    if setting is not None and {*path.split(".")} <= {*setting.name.split("."), setting.field}:
        return setting
    # The settings of a user's own part are known when it is opened.
    if section in settings and settings[section].parts:
        return replace(settings[section], name=path, field=last, parts={})
    close = [settings[match].name for match in get_close_matches(last, settings, n=1)]
    hint = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"{source}: unknown option {name!r}; {hint}--help-all shows them all")


def _content(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML or JSON file, such as a run's config.json."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read ({error.strerror}); name a TOML or JSON file") from error
    except (ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"--config {path} is no {kind} ({error}); expected settings such as steps = 50") from error
    if not isinstance(content, dict):
        raise UsageError(f'--config {path} is no object; expected settings by name, such as {{"steps": 50}}')
    if content.pop("palaestra", None) is not None:
        content.pop("kind", None)
    return content


def _pair(text: str) -> dict[str, Any]:
    """Return `NAME=VALUE` as a dict. A value in JSON is decoded, any other stays text."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--set has {text!r}; expected NAME=VALUE, such as lora_alpha=16")
    try:
        return {name: json.loads(value)}
    except ValueError:
        return {name: value}


def option_values(arguments: Sequence[str], *spellings: str) -> list[str]:
    """Return the values that an option has on the command line, in order."""
    return [
        argument.partition("=")[2] or following
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=False)
        if argument.partition("=")[0] in spellings
    ]


def option_value(arguments: Sequence[str], *spellings: str) -> str | None:
    """Return the last value that an option has on the command line; None if it is not named."""
    values = option_values(arguments, *spellings)
    return values[-1] if values else None


def named_options(arguments: Sequence[str]) -> set[str]:
    """Return the options that a command line names, without their dashes."""
    return {word[2:].partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")}
