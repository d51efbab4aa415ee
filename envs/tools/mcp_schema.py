"""The JSON schema that a server gives for a tool: checks of the schema, and of arguments by the schema.

A schema is untrusted, and a full check of arguments could take for ever. The server checks the arguments again; the
check here only reports common mistakes sooner, in a limited number of steps. Not checked here: patterns, formats,
`not`, conditions, `uniqueItems`, references to other documents, and whether two forms of a `oneOf` fit.
"""

import json
import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from palaestra.errors import ToolError, UsageError

MAX_CHARS = 100_000
"""Maximum characters of a tool's schema as JSON; a model has to read all of them."""
MAX_STEPS = 20_000
"""Maximum number of comparisons in one check, which take a fraction of a second."""
_SHOWN_FAULTS = 5
_FORMS = ("anyOf", "oneOf", "allOf")
_NAMED = ("properties", "$defs", "definitions")
_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "null": (type(None),), "integer": (int,), "number": (int, float),
    "array": (list, tuple), "object": (Mapping,),
}  # fmt: skip
_BOUNDS = (
    ("minimum", "number", operator.ge), ("maximum", "number", operator.le),
    ("exclusiveMinimum", "number", operator.gt), ("exclusiveMaximum", "number", operator.lt),
    ("minLength", "string", operator.ge), ("maxLength", "string", operator.le),
    ("minItems", "array", operator.ge), ("maxItems", "array", operator.le),
)  # fmt: skip


class GivenSchema:
    """Checks arguments by a JSON schema that a server gave."""

    plain = None

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        try:
            size, defect = len(json.dumps(schema)), _defect(schema)
        except RecursionError:
            size, defect = 0, "it is nested too deeply"
        if size > MAX_CHARS:
            defect = f"it has {size:,} characters, and {MAX_CHARS:,} are the most"
        if defect:
            raise UsageError(f"the tool {name!r} has a schema that cannot be used: {defect}; name others in `allow`")
        self._schema = schema

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments unchanged. Raise ToolError if they do not fit the schema."""
        faults: list[str] = []
        with suppress(_OutOfSteps, RecursionError):  # The rest is left to the server.
            for fault in _Check(self._schema).faults(arguments, self._schema, ""):
                faults.append(" ".join(fault[:200].split()))
                if len(faults) == _SHOWN_FAULTS:
                    break
        if faults:
            raise ToolError("; ".join(faults))
        return arguments


def _defect(schema: Any) -> str:
    """Return what is wrong with a schema or with one inside it, or "" if nothing is wrong."""
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, Mapping):
        return f"expected an object where {str(schema)[:50]!r} is"
    for names in (schema.get("required", []), [kinds] if isinstance(kinds := schema.get("type", []), str) else kinds):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return f"`required` and `type` hold names, not {str(names)[:50]!r}"
    inner: list[Any] = []
    for key in (*_FORMS, "enum", *_NAMED):
        value, kind = schema.get(key), Mapping if key in _NAMED else list
        if value is not None and not isinstance(value, kind):
            return f"`{key}` is {str(value)[:50]!r}"
        inner += [] if key == "enum" or not value else value.values() if isinstance(value, Mapping) else value
    inner += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), Mapping)]
    return next(filter(None, map(_defect, inner)), "")


class _OutOfSteps(Exception):
    """Raised when a check has used all of its steps."""


class _Check:
    """One check of arguments by a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MAX_STEPS

    def faults(self, value: Any, schema: Any, where: str) -> Iterator[str]:
        """Yield a text for each part of a value that does not fit the schema. `where` is the path of the value."""
        self._step(1)
        if schema is False:
            yield f"{where}: not allowed"
        if not isinstance(schema, Mapping):
            return
        if "$ref" in schema:
            yield from self.faults(value, self._target(schema["$ref"]), where)
            return
        kinds = [kind] if isinstance(kind := schema.get("type", []), str) else kind
        choices = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
        self._step(len(kinds) + len(choices))
        if kinds and not any(_is(value, kind) for kind in kinds):
            yield f"{where or 'arguments'}: expected {' or '.join(kinds[:10])}"
            return
        if choices and not any(_equal(value, choice) for choice in choices):
            yield f"{where}: expected one of {', '.join(map(_short, choices[:10]))}"
        for key, kind, holds in _BOUNDS:
            limit: Any = schema.get(key)
            if (
                _is(limit, "number")
                and _is(value, kind)
                and not holds(value if kind == "number" else len(value), limit)
            ):
                yield f"{where}: {key} is {limit}"
        if isinstance(value, list | tuple) and "items" in schema and "prefixItems" not in schema:
            for index, item in enumerate(value):
                yield from self.faults(item, schema["items"], _inside(where, index))
        if isinstance(value, Mapping):
            yield from self._of_object(value, schema, where)
        for form in schema.get("allOf", ()):
            yield from self.faults(value, form, where)
        for key in ("anyOf", "oneOf"):
            if schema.get(key) and all(any(self.faults(value, form, where)) for form in schema[key]):
                yield f"{where or 'arguments'}: fits none of the {len(schema[key])} forms that it may have"

    def _of_object(self, value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        self._step(len(required) + len(value))
        for name in required:
            if name not in value:
                yield f"{_inside(where, name)}: missing"
        for name, item in value.items():
            if name not in properties and others is False:
                yield f"{_inside(where, name)}: unknown; known: {', '.join(map(_short, islice(properties, 10)))}"
            elif (inner := properties.get(name, others)) is not True:
                yield from self.faults(item, inner, _inside(where, name))

    def _target(self, reference: Any) -> Any:
        """Return the schema that a reference names, or True (every value fits) if the name is not defined."""
        if reference == "#":
            return self._root
        kind, _, name = str(reference).removeprefix("#/").partition("/")
        return self._root.get(kind, {}).get(name, True) if kind in ("$defs", "definitions") else True

    def _step(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _OutOfSteps


def _inside(where: str, name: Any) -> str:
    return f"{where}.{name}"[-150:] if where else str(name)[-150:]


def _is(value: Any, kind: str) -> bool:
    """Return whether a value is of a kind; True for an unknown kind."""
    if isinstance(value, bool):
        return kind == "boolean" or kind not in _KINDS
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, (object,)))


def _short(choice: Any) -> str:
    return (
        repr(choice[:40]) if isinstance(choice, str) else "..." if isinstance(choice, list | Mapping) else str(choice)
    )


def _equal(value: Any, choice: Any) -> bool:
    return bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)
