"""Configs that validate themselves: each field's annotation gives its type, range and choices, and pydantic checks it.

A config may contain configs (sections). Field names are unique across a config and its sections, so `changed(config,
{"num_prompts": 4})` finds the field; a section may also be passed as a mapping, as in JSON. A part that is one of
several classes (its field has a table of them in its metadata) is written with its `name`.

Not here: rules that involve several fields, which the config itself checks.
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
"""Key of a field's metadata: the classes that the field may hold, by name."""
DataclassT = TypeVar("DataclassT")
_FINITE = ConfigDict(allow_inf_nan=False)


def check_fields(config: Any) -> None:
    """Raise `ConfigError` for the first field whose value does not match its annotation."""
    for name, adapter in _adapters(config.__class__).items():
        value = getattr(config, name)
        if value is tyro.MISSING:  # A required option that is not set yet.
            continue
        try:
            adapter.validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"].replace("Input should be", "it must be")
            raise ConfigError(f"{name} is {value!r}; {message}") from None


def changed(config: DataclassT, values: Mapping[str, Any]) -> DataclassT:
    """Return the config with other values. Raise `ConfigError` for an unknown name, with the closest known one."""
    sections_by_name = dict(_names(config))
    tables = {field.name: field.metadata[PARTS] for field in fields(config) if PARTS in field.metadata}  # type: ignore[arg-type]
    new_values: dict[str, Any] = {}
    section_values: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in sections_by_name:
            close = get_close_matches(name, sections_by_name, n=1, cutoff=0.0)
            raise ConfigError(
                f"unknown option {name!r}; " + (f"did you mean {close[0]!r}?" if close else "there are none here")
            )
        if sections_by_name[name]:
            section_values.setdefault(sections_by_name[name], {})[name] = value
        elif isinstance(value, Mapping) and (is_dataclass(getattr(config, name)) or name in tables):
            section_values.setdefault(name, {}).update(value)
        else:
            new_values[name] = tuple(value) if isinstance(value, list) else value
    for field in fields(config):  # type: ignore[arg-type]
        table, section = tables.get(field.name), section_values.get(field.name)
        if table and isinstance(new_values.get(field.name), str):
            new_values[field.name] = part(table, new_values[field.name], field.name)()
        if section is not None:
            section_config = new_values.get(field.name, getattr(config, field.name))
            if table and ("name" in section or section_config is None):
                section_config = part(table, section.pop("name", None), field.name)()
            new_values[field.name] = changed(section_config, section)
    return replace(config, **new_values)  # type: ignore[type-var]


def part(table: Mapping[str, Any], name: Any, what: str) -> Any:
    """Return the class of this name from a field's table. Raise `ConfigError` for an unknown name."""
    if not isinstance(name, str) or name not in table:
        raise ConfigError(f"{what} is {name!r}; it must be one of {', '.join(table)}")
    return table[name]


def plain(config: Any) -> dict[str, Any]:
    """Return a config as plain values for JSON. `changed` reads them back."""
    content: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            table = field.metadata.get(PARTS, {})
            names = [name for name, kind in table.items() if kind is type(value)]
            if table and not names:  # Without a name it would be read back as another class.
                raise ConfigError(
                    f"{field.name} is a {type(value).__name__}, which has no name to be written down by: add it to the "
                    f"table of {', '.join(table)}"
                )
            value = dict.fromkeys(("name",), *names) if names else {}
            value |= plain(getattr(config, field.name))
        content[field.name] = list(value) if isinstance(value, tuple) else value
    return content


def flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten nested plain values by their names on the command line, such as `optimizer.learning_rate`."""
    flat_values: dict[str, Any] = {}
    for name, value in content.items():
        flat_values |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat_values


def _names(config: Any) -> Iterator[tuple[str, str]]:
    """Yield every name that `changed` takes, with its section; "" for a field of the config itself."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from ((name, field.name) for name, _ in _names(value))
    yield from ((field.name, "") for field in fields(config))


@cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    hints_by_field = {field.name: hints[field.name] for field in fields(kind)}
    # A section validates itself.
    return {
        name: TypeAdapter(hint, config=None if is_dataclass(hint) else _FINITE) for name, hint in hints_by_field.items()
    }
