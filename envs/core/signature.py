"""Checks of a method's arguments, and their JSON schema: pydantic makes both from the signature, once per method.

If a parameter has no type, or a type without a JSON schema, an EnvironmentDefect is raised when the class is defined.
Left out: all other properties of a tool (`envs.core.tool`).
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partialmethod
from typing import Any, Protocol, get_type_hints

from docstring_parser import parse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from palaestra.errors import EnvironmentDefect

_PLAIN = (str, int, float, bool)
_WRAPPERS = (staticmethod, classmethod, property, cached_property, partialmethod, type(cache(len)))


class ArgumentReader(Protocol):
    """Interface of objects that check the arguments of a tool: a `Signature`, or a reader of a foreign schema."""

    @property
    def plain(self) -> tuple[tuple[str, type], ...] | None:
        """Parameters with their types, if each is required and of a plain type; else None."""

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments as the tool takes them; raise a ValidationError or a ToolError if they do not fit."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters of a method, to check arguments against."""

    model: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """Pairs (field of the model, parameter of the method)."""
    plain: tuple[tuple[str, type], ...] | None
    """Parameters with their types, if each is required and of a plain type; else None."""

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments as the method takes them; raise pydantic's ValidationError if they do not fit."""
        valid = self.model.model_validate(arguments)
        return {parameter: getattr(valid, field) for field, parameter in self.fields}


class _PlainSchema(GenerateJsonSchema):
    """Schema generator that leaves out pydantic's titles of fields, which only lengthen the prompt."""

    ignored_warning_kinds = set()  # noqa: RUF012  (pydantic declares it so)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        raise TypeError(detail)  # The default cannot be written as JSON, so the agent would not see it.


def read_signature(
    function: Callable[..., Any], where: str, descriptions: Mapping[str, str]
) -> tuple[Signature, dict[str, Any]]:
    """Return the checks of the parameters after `self`, and their JSON schema.

    The model's fields get neutral names and the parameters' names as aliases, so that a parameter may be called
    `schema`, `copy` or `_x`, which pydantic would refuse as field names.
    """
    hints = _hints(function, where)
    definitions: dict[str, Any] = {}
    fields: list[tuple[str, str]] = []
    offered = _behind_self(function, where)
    for position, parameter in enumerate(offered):
        _check_parameter(parameter, where, hints)
        field = f"argument_{position}"
        definitions[field] = (hints[parameter.name], _field(parameter, descriptions.get(parameter.name)))
        fields.append((field, parameter.name))
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    try:
        model: type[BaseModel] = create_model(function.__name__, __config__=config, **definitions)
        parameters = model.model_json_schema(schema_generator=_PlainSchema)
        json.dumps(parameters, allow_nan=False)
    except (PydanticUserError, TypeError, ValueError) as error:
        raise EnvironmentDefect(f"{where}: {_without_schema(hints, [item.name for item in offered], error)}") from error
    for key in ("title", "additionalProperties"):
        parameters.pop(key, None)
    parameters.setdefault("properties", {})
    plain = all(item.default is item.empty and hints[item.name] in _PLAIN for item in offered)
    types = tuple((item.name, hints[item.name]) for item in offered)
    return Signature(model, tuple(fields), types if plain else None), parameters


def _without_schema(hints: Mapping[str, Any], names: Sequence[str], error: Exception) -> str:
    """Return an error text that names the parameter whose type JSON cannot hold, and the fix."""
    for name in names:
        try:
            TypeAdapter(hints[name]).json_schema()
        except Exception as schema_error:
            if "numpy.ndarray" in str(schema_error):
                array = f"parameter {name!r} is a numpy array, which no JSON holds"
                return f"{array}; write {name}: list[float], and make the array inside the method"
            reason = str(schema_error).split(". ")[0]
            return f"parameter {name!r} has no JSON schema ({reason}); write str, int, list, dict or a pydantic model"
    return f"its parameters have no JSON schema: {error}"


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Return the summary in one line, and the description of each parameter. The return value needs no description."""
    read = parse(text or "")
    return _line(read.description), {parameter.arg_name: _line(parameter.description) for parameter in read.params}


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def inner_function(value: Any) -> Callable[..., Any] | None:
    """Return the function inside a staticmethod, a property or the like; None for any other value."""
    if not isinstance(value, _WRAPPERS):
        return None
    inside = [getattr(value, name, None) for name in ("__func__", "fget", "func", "__wrapped__")]
    return next(filter(inspect.isfunction, inside), None)


def check_process(function: Callable[..., Any], where: str) -> None:
    """Check that another process can import the function by its name and call it without an instance."""
    if "<locals>" in function.__qualname__:
        raise EnvironmentDefect(
            f"{where} has process=True, but its class is made inside a function, where no other process finds it; "
            "define the class at the top of a module"
        )
    if function.__closure__:
        raise EnvironmentDefect(f"{where} has process=True and uses variables around it (or super()); pass arguments")
    first = next(iter(inspect.signature(function).parameters), "")
    if _uses(function, first):
        raise EnvironmentDefect(
            f"{where} has process=True and uses {first!r}; its process has no environment, only the arguments: "
            "use blocking=True, or do without"
        )


def _uses(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function reads that local variable, or passes it to a function inside it."""
    import dis  # Loads slowly, and few tools need it.

    read = [
        instruction.argval
        for instruction in dis.get_instructions(function)
        if instruction.opname.startswith("LOAD_FAST")
    ]
    # From Python 3.13 on one instruction may load two variables: its argval is then a tuple of names.
    return name in function.__code__.co_cellvars or any(name == argument or name in argument for argument in read)


def _behind_self(function: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    """Return the parameters that the agent is offered, all except `self`; raise EnvironmentDefect without `self`."""
    signature = inspect.signature(function)
    first = next(iter(signature.parameters.values()), None)
    if first is None or (first.name != "self" and first.annotation is not first.empty):
        name = function.__name__
        raise EnvironmentDefect(
            f"{where} is written {name}{signature}, without self, so the agent would not be offered its first "
            f"parameter; write def {name}(self, ...)"
        )
    return list(signature.parameters.values())[1:]


def _hints(function: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise EnvironmentDefect(
            f"{where}: a type in its signature cannot be resolved ({error}); define it at the top of the module"
        ) from error


def _check_parameter(parameter: inspect.Parameter, where: str, hints: Mapping[str, Any]) -> None:
    """Check that a parameter can be called by name and has a type."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise EnvironmentDefect(
            f"{where}: parameter {parameter} cannot be called by name; list the parameters one by one, without * or /"
        )
    if parameter.name not in hints:
        raise EnvironmentDefect(
            f"{where}: parameter {parameter.name!r} has no type; write {parameter.name}: str (or int, Literal, ...)"
        )
    if isinstance(parameter.default, FieldInfo):
        raise EnvironmentDefect(
            f"{where}: parameter {parameter.name!r} has Field(...) for a default; "
            f"write {parameter.name}: Annotated[type, Field(...)] = default"
        )


def _field(parameter: inspect.Parameter, description: str | None) -> FieldInfo:
    """Return pydantic's field of a parameter; a description in its `Annotated[..., Field(...)]` has priority."""
    default = ... if parameter.default is parameter.empty else parameter.default
    extra = {"description": description} if description else {}
    annotated = getattr(parameter.annotation, "__metadata__", ())
    if any(isinstance(item, FieldInfo) and item.description for item in annotated):
        extra = {}
    field: FieldInfo = Field(default, alias=parameter.name, **extra)  # type: ignore[call-overload]
    return field
