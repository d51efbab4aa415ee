"""Results of tools: `Done`, a text that ends the episode, and JSON for results that are not text.

Left out: cutting a long text, and error texts for the agent (`envs.core.calls`).
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from palaestra.errors import EnvironmentDefect

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


class Done(str):
    """A tool's result that ends the episode: `return Done("You fell into a hole.", answer="hole")`."""

    __slots__ = ("answer",)
    answer: str
    """Answer that ends the episode; by default the text itself."""

    def __new__(cls, text: str, answer: str | None = None) -> "Done":
        done = super().__new__(cls, text)
        done.answer = str(text if answer is None else answer)
        return done


def as_json(tool: str, result: Any) -> str:
    """Return a result that is not a text as JSON. If JSON cannot hold it, raise an EnvironmentDefect that names the
    tool."""
    try:
        return json.dumps(result, default=_in_json, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentDefect(
            f"tool {tool!r} returned {type(result).__name__}: {error}; expected text, or numbers, lists, mappings, "
            "dataclasses and models of such: write array.tolist() for an array, data.decode() for bytes"
        ) from error


def as_received(written: Any, value: Any) -> Any:
    """Return a checked argument as plain data: as written if nothing changed, else models as dicts, dates as text."""
    if value is written:
        return written
    try:
        data = _ANYTHING.dump_python(value, mode="json", by_alias=True, warnings=False)
    except ValueError:  # An author's type that pydantic can read, but not write.
        return written
    return written if json.dumps(data, sort_keys=True) == json.dumps(written, sort_keys=True) else data


def _in_json(value: Any) -> Any:
    """Return an equal value that JSON can hold; the order of a set is the same in every process."""
    if isinstance(value, bytes | bytearray | memoryview | np.ndarray):
        raise TypeError(f"{type(value).__name__} is no JSON")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=True, warnings=False)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    try:
        return _ANYTHING.dump_python(value, mode="json")
    except ValueError:  # An unknown class: its str(), unless that is Python's default, with a memory address.
        if hex(id(value)) in (text := str(value)):
            raise TypeError(f"{text} has no text that an agent could read") from None
        return text
