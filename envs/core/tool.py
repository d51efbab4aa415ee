"""The decorator that makes a typed method a tool, and what a class knows about its tools.

A tool's schema and the check of its arguments come from the method's signature, by pydantic, once per class.
Left out: running a call (`envs.core.calls`) and choosing a thread for it (`envs.core.runner`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from palaestra.envs.core.docstring import read_docstring
from palaestra.errors import EnvironmentDefect, ToolError

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__palaestra_tool__"
_TIMEOUT = 30.0


class Mode(StrEnum):
    """Where a tool runs."""

    INLINE = "inline"
    """In place, in the caller's thread: for tools that only compute. Its time-out cannot be enforced."""
    ASYNC = "async"
    """An `async def`: on the event loop, beside the other slots' calls."""
    BLOCKING = "blocking"
    """A plain method that waits: in a thread."""


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What was written at the decorator."""

    name: str | None = None
    timeout: float | None = None
    blocking: bool = False


@overload
def tool(function: Method, /) -> Method: ...
@overload
def tool(
    *, name: str | None = None, timeout: float | None = None, blocking: bool = False
) -> Callable[[Method], Method]: ...
def tool(
    function: Any = None, /, *, name: str | None = None, timeout: float | None = None, blocking: bool = False
) -> Any:
    """Offer a method to the agent. Every parameter needs a type; the docstring becomes the description.

    `timeout` is our own deadline for async and blocking tools, 30 seconds by default. Passing it ends the episode
    BROKEN, so a tool that runs the agent's programs keeps a shorter limit of its own and raises ToolError. `blocking`
    sends a waiting method to a thread.
    """
    options = ToolOptions(name, timeout, blocking)
    if timeout is not None and not timeout > 0:
        raise EnvironmentDefect(f"@tool(timeout={timeout!r}); expected a positive number of seconds")

    def mark(method: Any) -> Any:
        if not inspect.isfunction(method):
            raise EnvironmentDefect(
                f"@tool was put on a {type(method).__name__}; put it directly on a method (above no other decorator)"
            )
        setattr(method, _MARK, options)
        return method

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A tool as its class knows it; the instance that owns it comes with the call."""

    name: str
    attribute: str
    """The method's name, which may differ from what the agent calls."""
    mode: Mode
    timeout: float
    schema: Mapping[str, Any]
    """In the OpenAI form."""
    model: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """Pairs (field of the model, parameter of the method)."""

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the method wants them; a ToolError in one line where they do not fit."""
        try:
            valid = self.model.model_validate(arguments)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = "; ".join(
                ".".join(map(str, item["loc"])) + ": " + " ".join(item["msg"].split()) for item in found[:5]
            )
            raise ToolError(f"wrong arguments for {self.name}: {wrong}. {self.usage()}") from None
        return {parameter: getattr(valid, field) for field, parameter in self.fields}

    def usage(self) -> str:
        """One line that says what the tool takes."""
        parameters: Mapping[str, Any] = self.schema["function"]["parameters"]
        required = parameters.get("required", ())
        names = [name if name in required else f"{name} (optional)" for name in parameters["properties"]]
        return f"It takes: {', '.join(names) or 'no arguments'}"


class _PlainSchema(GenerateJsonSchema):
    """Without the titles pydantic makes of field names: they only lengthen the prompt."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def collect(owner: type) -> dict[str, Tool]:
    """The tools of a class by the names the agent uses, in the order they were written, base classes first."""
    attributes: dict[str, None] = {}
    for base in reversed(owner.__mro__):
        attributes.update((key, None) for key, value in vars(base).items() if _options(value) is not None)
    found: dict[str, Tool] = {}
    for attribute in attributes:
        function = inspect.getattr_static(owner, attribute)
        if _options(function) is None:  # Overridden without the decorator: no longer a tool.
            continue
        made = _make(function, attribute, owner.__name__)
        if made.name in found:
            raise EnvironmentDefect(
                f"{owner.__name__} has two tools named {made.name!r} ({found[made.name].attribute} and {attribute}); "
                "rename one with @tool(name=...)"
            )
        found[made.name] = made
    return found


def _options(value: Any) -> ToolOptions | None:
    return getattr(value, _MARK, None) if inspect.isfunction(value) else None


@cache
def _make(function: Callable[..., Any], attribute: str, owner: str) -> Tool:
    """Read one method."""
    options = _options(function)
    assert options is not None
    where = f"{owner}.{attribute}"
    asynchronous = inspect.iscoroutinefunction(function)
    if asynchronous and options.blocking:
        raise EnvironmentDefect(f"{where} is an async def with blocking=True; drop blocking, it is for plain methods")
    mode = Mode.ASYNC if asynchronous else Mode.BLOCKING if options.blocking else Mode.INLINE
    if mode is Mode.INLINE and options.timeout is not None:
        raise EnvironmentDefect(
            f"{where} has timeout={options.timeout:g}, which cannot be enforced on a plain method that runs in place; "
            "add blocking=True, or make it async"
        )
    summary, descriptions = read_docstring(function.__doc__)
    model, fields = _model(function, where, descriptions)
    parameters = model.model_json_schema(schema_generator=_PlainSchema)
    for key in ("title", "additionalProperties"):
        parameters.pop(key, None)
    parameters.setdefault("properties", {})
    name = options.name or attribute
    return Tool(
        name=name,
        attribute=attribute,
        mode=mode,
        timeout=_TIMEOUT if options.timeout is None else options.timeout,
        schema={"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}},
        model=model,
        fields=fields,
    )


def _model(
    function: Callable[..., Any], where: str, descriptions: Mapping[str, str]
) -> tuple[type[BaseModel], tuple[tuple[str, str], ...]]:
    """A pydantic model of the parameters after `self`.

    Fields get neutral names and the parameters' names as aliases, so that a parameter may be called `schema`,
    `copy` or `_x`, which pydantic would refuse as field names.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise EnvironmentDefect(
            f"{where}: a type in its signature cannot be resolved ({error}); define it at the top of the module"
        ) from error
    definitions: dict[str, Any] = {}
    fields: list[tuple[str, str]] = []
    for position, parameter in enumerate(list(inspect.signature(function).parameters.values())[1:]):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise EnvironmentDefect(
                f"{where}: parameter {parameter} cannot be called by name; "
                "list the parameters one by one, without * or /"
            )
        if parameter.name not in hints:
            raise EnvironmentDefect(
                f"{where}: parameter {parameter.name!r} has no type; write {parameter.name}: str (or int, Literal, ...)"
            )
        field = f"argument_{position}"
        definitions[field] = (hints[parameter.name], _field(parameter, descriptions.get(parameter.name)))
        fields.append((field, parameter.name))
    config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
    try:
        model: type[BaseModel] = create_model(function.__name__, __config__=config, **definitions)
    except (PydanticUserError, TypeError) as error:
        raise EnvironmentDefect(f"{where}: its parameters have no JSON schema: {error}") from error
    return model, tuple(fields)


def _field(parameter: inspect.Parameter, description: str | None) -> FieldInfo:
    """The parameter's default and alias; a description in `Annotated[..., Field(...)]` wins over the docstring's."""
    default = ... if parameter.default is parameter.empty else parameter.default
    told = {"description": description} if description else {}
    annotated = getattr(parameter.annotation, "__metadata__", ())
    if any(isinstance(item, FieldInfo) and item.description for item in annotated):
        told = {}
    made: FieldInfo = Field(default, alias=parameter.name, **told)  # type: ignore[call-overload]
    return made
