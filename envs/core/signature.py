"""From a method's signature to the check of its arguments and their JSON schema, by pydantic, once per method.

What an author got wrong (no type, a default that does not fit, a type without a JSON schema) is an EnvironmentDefect
when the class is made. Left out: what else is known of a tool (`envs.core.tool`).
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partialmethod
from typing import Any, Protocol, get_type_hints

from docstring_parser import parse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from palaestra.errors import EnvironmentDefect

_PLAIN = (str, int, float, bool)
_WRAPPERS = (staticmethod, classmethod, property, cached_property, partialmethod, type(cache(len)))


class ArgumentReader(Protocol):
    """What checks the arguments of a tool: a `Signature`, or what knows a schema that somebody else wrote."""

    @property
    def plain(self) -> tuple[tuple[str, type], ...] | None:
        """The parameters with their types, where each is required and of a plain type; else None."""

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as the tool wants them; a ValidationError or a ToolError where they do not fit."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a method takes, to check arguments against."""

    model: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """Pairs (field of the model, parameter of the method)."""
    plain: tuple[tuple[str, type], ...] | None
    """The parameters with their types, where each is required and of a plain type; else None."""

    def read(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as the method wants them; pydantic's ValidationError where they do not fit."""
        valid = self.model.model_validate(arguments)
        return {parameter: getattr(valid, field) for field, parameter in self.fields}


class _PlainSchema(GenerateJsonSchema):
    """Without the titles pydantic makes of field names: they only lengthen the prompt."""

    ignored_warning_kinds = set()  # noqa: RUF012  (pydantic declares it so)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        raise TypeError(detail)  # A default that is no JSON: the agent would not be told of it.


def read_signature(
    function: Callable[..., Any], where: str, descriptions: Mapping[str, str]
) -> tuple[Signature, dict[str, Any]]:
    """The parameters after `self`, and their JSON schema.

    The model's fields get neutral names and the parameters' names as aliases, so that a parameter may be called
    `schema`, `copy` or `_x`, which pydantic would refuse as field names.
    """
    hints = _hints(function, where)
    definitions: dict[str, Any] = {}
    fields: list[tuple[str, str]] = []
    taken = _behind_self(function, where)
    for position, parameter in enumerate(taken):
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
        raise EnvironmentDefect(f"{where}: {_without_schema(hints, [one.name for one in taken], error)}") from error
    for key in ("title", "additionalProperties"):
        parameters.pop(key, None)
    parameters.setdefault("properties", {})
    plain = all(one.default is one.empty and hints[one.name] in _PLAIN for one in taken)
    types = tuple((one.name, hints[one.name]) for one in taken)
    return Signature(model, tuple(fields), types if plain else None), parameters


def _without_schema(hints: Mapping[str, Any], names: Sequence[str], error: Exception) -> str:
    """Which parameter is of a type that no JSON holds, and what to write."""
    for name in names:
        try:
            TypeAdapter(hints[name]).json_schema()
        except Exception as found:
            if "numpy.ndarray" in str(found):
                array = f"parameter {name!r} is a numpy array, which no JSON holds"
                return f"{array}; write {name}: list[float], and make the array inside the method"
            reason = str(found).split(". ")[0]
            return f"parameter {name!r} has no JSON schema ({reason}); write str, int, list, dict or a pydantic model"
    return f"its parameters have no JSON schema: {error}"


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The summary in one line, and what each parameter is; what a tool returns, the agent sees."""
    read = parse(text or "")
    return _line(read.description), {one.arg_name: _line(one.description) for one in read.params}


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def inner_function(value: Any) -> Callable[..., Any] | None:
    """The function inside a staticmethod, a property or the like; None for a function itself, and for all else."""
    if not isinstance(value, _WRAPPERS):
        return None
    inside = [getattr(value, name, None) for name in ("__func__", "fget", "func", "__wrapped__")]
    return next(filter(inspect.isfunction, inside), None)


def check_method(owner: type, name: str, replaced: Callable[..., Any], awaited: bool = False) -> None:
    """A method that an author writes in place of ours is called as ours is: it takes the same, and may be an async def
    only where it is `awaited`."""
    method = inspect.getattr_static(owner, name)
    if not inspect.isfunction(method):
        return
    where, wanted = f"{owner.__name__}.{name}", f"def {name}({', '.join(inspect.signature(replaced).parameters)})"
    if not awaited and (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
        raise EnvironmentDefect(
            f"{where} is an async def, which nobody would await; write a plain method, {wanted}: it may wait where a "
            "tool of its toolkit does"
        )
    try:
        inspect.signature(method).bind(*inspect.signature(replaced).parameters)
    except TypeError as error:
        raise EnvironmentDefect(f"{where} is not called as it is written ({error}); write {wanted}") from None


def check_process(function: Callable[..., Any], where: str) -> None:
    """Another process imports the function by its name and calls it without an instance."""
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
    """True where a function reads that local variable, or hands it to a function inside it."""
    import dis  # Loads slowly, and few tools need it.

    read = [found.argval for found in dis.get_instructions(function) if found.opname.startswith("LOAD_FAST")]
    # From Python 3.13 on one instruction may load two variables: its argval is then a tuple of names.
    return name in function.__code__.co_cellvars or any(name == one or name in one for one in read)


def _behind_self(function: Callable[..., Any], where: str) -> list[inspect.Parameter]:
    """The parameters that the agent is offered: Python hands a method its first one."""
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
    """It can be called by name, has a type, and a default of that type."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise EnvironmentDefect(
            f"{where}: parameter {parameter} cannot be called by name; list the parameters one by one, without * or /"
        )
    if parameter.name not in hints:
        raise EnvironmentDefect(
            f"{where}: parameter {parameter.name!r} has no type; write {parameter.name}: str (or int, Literal, ...)"
        )
    if parameter.default is parameter.empty:
        return
    if isinstance(parameter.default, FieldInfo):
        raise EnvironmentDefect(
            f"{where}: parameter {parameter.name!r} has Field(...) for a default; "
            f"write {parameter.name}: Annotated[type, Field(...)] = default"
        )
    try:
        TypeAdapter(hints[parameter.name]).validate_python(parameter.default)
    except ValidationError as error:
        said = "; ".join(item["msg"] for item in error.errors(include_url=False))
        optional = " (None needs `| None` in the type)" if parameter.default is None else ""
        raise EnvironmentDefect(
            f"{where}: the default {parameter.default!r} of {parameter.name!r} does not fit its type: {said}{optional}"
        ) from error
    except PydanticUserError:  # A type that pydantic does not know is told by name where the model is made.
        return


def _field(parameter: inspect.Parameter, description: str | None) -> FieldInfo:
    """The parameter's default and alias; a description in `Annotated[..., Field(...)]` wins over the docstring's."""
    default = ... if parameter.default is parameter.empty else parameter.default
    told = {"description": description} if description else {}
    annotated = getattr(parameter.annotation, "__metadata__", ())
    if any(isinstance(item, FieldInfo) and item.description for item in annotated):
        told = {}
    made: FieldInfo = Field(default, alias=parameter.name, **told)  # type: ignore[call-overload]
    return made
