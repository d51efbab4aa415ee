"""Configs that check themselves: each field's annotation says its kind, range and choices, and pydantic reads it.

Left out: what depends on several fields, which the config itself checks.
"""

from collections.abc import Mapping
from dataclasses import fields
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
Config = TypeVar("Config")
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def check_fields(config: Any) -> None:
    """Refuse the first field whose value is not what its annotation allows."""
    for name, adapter in _adapters(config.__class__).items():
        value = getattr(config, name)
        if value is tyro.MISSING:  # The reader of `--help` has still to name it.
            continue
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            said = error.errors()[0]["msg"].replace("Input should be", "it must be")
            raise ConfigError(f"{name} is {value!r}; {said}") from None


def from_values(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """A config from plain values, as JSON gives them; an unknown key is an error that names the closest one."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            close = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"unknown option {key!r}; did you mean {close!r}?")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


@cache
def _adapters(kind: type) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: TypeAdapter(hints[field.name], config=_STRICT) for field in fields(kind)}
