"""Configs that check themselves: each field's annotation says its kind, range and choices, and pydantic reads it.

A config may hold configs, a section for each reader of it. No name of a field stands twice in a config and its
sections, so `changed(config, {"num_prompts": 4})` finds its place; a section given as a mapping, as JSON has it, does
too. A part that is one of several classes (its field has a table of them in its metadata) is written with its `name`.

Left out: what depends on several fields, which the config itself checks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, get_type_hints

import tyro
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from palaestra.errors import ConfigError

COUNT = Field(ge=1)
POSITIVE = Field(gt=0)
NOT_NEGATIVE = Field(ge=0)
SHARE = Field(ge=0, le=1)
BELOW_ONE = Field(ge=0, lt=1)
PARTS = "parts"
"""Key of a field's metadata: the classes that it may hold, by name."""
Config = TypeVar("Config")
_FINITE = ConfigDict(allow_inf_nan=False)


def check_fields(config: Any) -> None:
    """Refuse the first field whose value is not what its annotation allows."""
    for name, adapter in _adapters(config.__class__).items():
        value = getattr(config, name)
        if value is tyro.MISSING:  # The reader of `--help` has still to name it.
            continue
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            said = error.errors()[0]["msg"].replace("Input should be", "it must be")
            raise ConfigError(f"{name} is {value!r}; {said}") from None


def changed(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with other values; an unknown name is an error that names the closest one."""
    known = dict(_names(config))
    tables = {field.name: field.metadata[PARTS] for field in fields(config) if PARTS in field.metadata}  # type: ignore[arg-type]
    own: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in known:
            close = get_close_matches(name, known, n=1, cutoff=0.0)
            raise ConfigError(
                f"unknown option {name!r}; " + (f"did you mean {close[0]!r}?" if close else "there are none here")
            )
        if known[name]:
            below.setdefault(known[name], {})[name] = value
        elif isinstance(value, Mapping) and (is_dataclass(getattr(config, name)) or name in tables):
            below.setdefault(name, {}).update(value)
        else:
            own[name] = tuple(value) if isinstance(value, list) else value
    for field in fields(config):  # type: ignore[arg-type]
        table, section = tables.get(field.name), below.get(field.name)
        if table and isinstance(own.get(field.name), str):
            own[field.name] = part(table, own[field.name], field.name)()
        if section is not None:
            there = own.get(field.name, getattr(config, field.name))
            if table and ("name" in section or there is None):
                there = part(table, section.pop("name", None), field.name)()
            own[field.name] = changed(there, section)
    return replace(config, **own)  # type: ignore[type-var]


def part(table: Mapping[str, Any], name: Any, what: str) -> Any:
    """One of the classes that a field may hold."""
    if name not in table:
        raise ConfigError(f"{what} is {name!r}; it must be one of {', '.join(table)}")
    return table[name]


def plain(config: Any) -> dict[str, Any]:
    """A config as JSON holds it; `changed` reads it back."""
    found: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            table = field.metadata.get(PARTS, {})
            names = [name for name, kind in table.items() if kind is type(value)]
            if table and not names:  # Read back, it would be another part.
                raise ConfigError(
                    f"{field.name} is a {type(value).__name__}, which has no name to be written down by: add it to the "
                    f"table of {', '.join(table)}"
                )
            value = dict.fromkeys(("name",), *names) if names else {}
            value |= plain(getattr(config, field.name))
        found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested plain values by their names on the command line, as in `optimizer.learning_rate`."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return found


def _names(config: Any) -> Iterator[tuple[str, str]]:
    """Every name that `changed` takes, with the section that it stands in; empty for a name of the config itself."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from ((name, field.name) for name, _ in _names(value))
    yield from ((field.name, "") for field in fields(config))


@cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    of = {field.name: hints[field.name] for field in fields(kind)}
    # A section has checked itself.
    return {name: TypeAdapter(hint, config=None if is_dataclass(hint) else _FINITE) for name, hint in of.items()}
