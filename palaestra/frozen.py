"""Data classes that only the type checker protects from changes, at no cost at run time.

A frozen data class sets each of its fields through `object.__setattr__`: creating one takes three times as long, and a
step of an environment creates about six. `statically_frozen` is for classes that only palaestra's code uses, where mypy
sees every assignment. Classes that authors and rewards receive stay `@dataclass(frozen=True)`.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

FrozenT = TypeVar("FrozenT")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def statically_frozen(cls: type[FrozenT]) -> type[FrozenT]:
    """Make a data class with slots, compared and hashed by its fields. Only the type checker forbids changes."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
