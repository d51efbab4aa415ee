"""Validate configs when they are created: a field's annotation gives its type, range and choices; pydantic checks them.

A config may contain other configs, its sections. Field names are unique across a config and its sections, so
`changed(config, {"num_prompts": 4})` finds the field; a section may also be passed as a mapping, as in JSON. A field
whose metadata hold a table of built-in parts contains a part of a recipe; `plain` writes the part's `name` (`parts`).

Not here: rules for several fields at once, which the config itself checks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, get_type_hints

import tyro
from pydantic import ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError

from palaestra.errors import ConfigError
from palaestra.trainers.parts import Load, UnloadedPart, check_part, find_part, load_part, part_name

COUNT = Field(ge=1)
POSITIVE = Field(gt=0)
NOT_NEGATIVE = Field(ge=0)
SHARE = Field(ge=0, le=1)
BELOW_ONE = Field(ge=0, lt=1)
PARTS = "parts"
"""Key of a field's metadata: the built-in parts that the field may hold, by name."""
DataclassT = TypeVar("DataclassT")
_INSTANCE_OF: Any = InstanceOf
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
    for field in fields(config):
        if PARTS in field.metadata:
            check_part(field.metadata[PARTS], getattr(config, field.name), field.name)


def changed(config: DataclassT, values: Mapping[str, Any], load: Load = load_part) -> DataclassT:
    """Return the config with these values changed. For an unknown name raise `ConfigError` with the closest known one.

    `load` returns parts that are named as `module:name`; by default it imports their modules.
    """
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
        elif isinstance(value, str) and name in tables:
            new_values[name] = find_part(tables[name], value, name, load)
        else:
            new_values[name] = tuple(value) if isinstance(value, list) else value
    for name, section in section_values.items():
        value = new_values.get(name, getattr(config, name))
        if name in tables:
            value = _chosen_part(tables[name], value, section.pop("name", None), name, load)
        new_values[name] = _with_settings(value, section, name, load)
    return replace(config, **new_values)  # type: ignore[type-var]


def _chosen_part(table: Mapping[str, Any], part: Any, name: Any, kind: str, load: Load) -> Any:
    """Return the part with this name. If `name` is None, return the present part, if there is one."""
    if name is None and part is not None:
        return part
    # A part of your own that is loaded already is not searched for: what names it here may be a file.
    is_own = isinstance(name, str) and ":" in name and not isinstance(part, UnloadedPart | None)
    return part if is_own and part_name(table, part, kind) == name else find_part(table, name, kind, load)


def _with_settings(part: Any, settings: Mapping[str, Any], name: str, load: Load) -> Any:
    if isinstance(part, UnloadedPart):
        return UnloadedPart(part.name, {**part.settings, **settings})
    if settings and not is_dataclass(part):
        raise ConfigError(f"{name} has no settings; leave out {', '.join(settings)}")
    return changed(part, settings, load) if settings else part


def plain(config: Any) -> dict[str, Any]:
    """Return a config as plain values for JSON. `changed` reads them back."""
    content: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if PARTS in field.metadata and value is not None and not isinstance(value, str):
            settings = (
                value.settings if isinstance(value, UnloadedPart) else plain(value) if is_dataclass(value) else {}
            )
            value = {"name": part_name(field.metadata[PARTS], value, field.name), **settings}
        elif is_dataclass(value):
            value = plain(value)
        content[field.name] = list(value) if isinstance(value, tuple) else value
    return content


def _settings(part: Any) -> Mapping[str, Any]:
    """Return the settings of a part as plain values for JSON."""
    if isinstance(part, UnloadedPart):
        return part.settings
    return plain(part) if is_dataclass(part) else {}


def flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested plain values as one dict, whose keys are command-line names such as `optimizer.learning_rate`."""
    flat_values: dict[str, Any] = {}
    for name, value in content.items():
        flat_values |= flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat_values


def _names(config: Any) -> Iterator[tuple[str, str]]:
    """Yield each name that `changed` accepts, and the name of its section, which is "" for the config itself."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from ((name, field.name) for name, _ in _names(value))
    yield from ((field.name, "") for field in fields(config))


@cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    hints_by_field = {field.name: hints[field.name] for field in fields(kind) if PARTS not in field.metadata}
    # A section validates itself.
    return {
        name: TypeAdapter(_INSTANCE_OF[hint]) if is_dataclass(hint) else TypeAdapter(hint, config=_FINITE)
        for name, hint in hints_by_field.items()
    }
