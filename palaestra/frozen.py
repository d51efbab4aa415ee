"""Data classes that only the type checker protects from changes, at no cost at run time.

A frozen data class sets each of its fields through `object.__setattr__`: creating one takes three times as long, and a
step of an environment creates half a dozen. `statically_frozen` is for classes that only our own code uses, where mypy
sees every assignment. Classes that authors and rewards receive stay `@dataclass(frozen=True)`.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

FrozenT = TypeVar("FrozenT")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def statically_frozen(cls: type[FrozenT]) -> type[FrozenT]:
    """Return a data class with slots, equal and hashed by its fields, that only the type checker keeps unchanged."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
