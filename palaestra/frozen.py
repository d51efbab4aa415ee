"""Data classes that the type checker keeps from being changed, while the interpreter spends nothing on it.

A frozen data class sets each of its fields through `object.__setattr__`: making one takes three times as long, and a
step of an environment makes half a dozen. `statically_frozen` is for those that are made and read by our own code,
where mypy sees every assignment. What authors and rewards are given stays `@dataclass(frozen=True)`.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Made = TypeVar("Made")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def statically_frozen(cls: type[Made]) -> type[Made]:
    """A data class with slots, equal and hashed by its fields, that only the type checker keeps from being changed."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
