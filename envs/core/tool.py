"""The decorator `@tool`, which makes a typed method a tool, and the class `Tool`, which describes such a method.

The author's code is checked when the class is defined (`signature` reads the parameters). A tool checks a call's
arguments and makes the text of a result. Left out: running a call (`calls`), and threads, loops, processes and retries
(`envs.running`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, TypeVar, overload

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from palaestra.envs.core.result import Done, as_json, as_received
from palaestra.envs.core.signature import ArgumentReader, check_process, inner_function, read_docstring, read_signature
from palaestra.envs.running.concurrency_limits import limit_of
from palaestra.envs.running.work import Conditions, WorkMode
from palaestra.errors import EnvironmentDefect, ToolError

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__palaestra_tool__"
_TIMEOUT = 30.0
NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"


@checked(frozen=True, slots=True, config=ConfigDict(strict=True, extra="forbid"))
class ToolOptions:
    """Options of `@tool`; each value is checked when the tool is defined."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    blocking: bool = False
    process: bool = False
    concurrency: Annotated[int, Field(ge=1)] | None = None
    per_second: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    retries: Annotated[int, Field(ge=0)] = 0
    transient: tuple[type[Exception], ...] = ()
    terminal: bool = False

    def __post_init__(self) -> None:
        if any(issubclass(error, ToolError) for error in self.transient):
            raise EnvironmentDefect(
                f"@tool(transient={self.transient!r}) names ToolError, which is an answer and never tried again; "
                "name the exceptions that another try may cure, such as ConnectionError"
            )
        if bool(self.retries) != bool(self.transient):
            raise EnvironmentDefect(
                f"@tool(retries={self.retries}, transient={self.transient!r}); give both: how often to try again, "
                "and after which exceptions"
            )


@overload
def tool(function: Method, /) -> Method: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = None,
    blocking: bool = False,
    process: bool = False,
    concurrency: int | None = None,
    per_second: float | None = None,
    retries: int = 0,
    transient: tuple[type[Exception], ...] = (),
    terminal: bool = False,
) -> Callable[[Method], Method]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Offer a method to the agent. Every parameter needs a type; the docstring becomes the description.

    `timeout` is the deadline of a call, in seconds, for tools that do not run in place; 30 by default. A call that
    exceeds it ends the episode BROKEN, so a tool that runs the agent's programs needs a shorter limit of its own and
    raises ToolError. `blocking` runs a method that waits in a thread. `process` runs a method that never uses `self` in
    a process of its own, which is killed at the timeout; if it is killed or dies, the agent gets an error text.
    `concurrency` (calls at once) and `per_second` (calls begun) hold for all environments of this Python process;
    waiting for them does not count against `timeout`. After a `transient` exception, a call is tried up to `retries`
    more times, within `timeout`. If the last try raises it too, the infrastructure has failed, and the episode ends
    BROKEN. So if the agent's own input can cause it, such as an address that the agent chose, the tool must catch it
    and raise ToolError. A call of a `terminal` tool that succeeds ends the episode, and its result is the answer.
    """
    if isinstance(options.get("transient"), type):
        options["transient"] = (options["transient"],)
    try:
        tool_options = ToolOptions(**options)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        option = str(problem["loc"][0])
        expected = f"its options are {', '.join(field.name for field in fields(ToolOptions))}"
        raise EnvironmentDefect(f"@tool({option}={options[option]!r}): {problem['msg']}; {expected}") from None

    def mark(method: Any) -> Any:
        if not inspect.isfunction(method):
            raise EnvironmentDefect(
                f"@tool was put on a {type(method).__name__}; put it directly on a method (above no other decorator)"
            )
        setattr(method, _MARK, tool_options)
        return method

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A tool of a class. The instance whose method runs is given with each call."""

    name: str
    attribute: str
    """Name of the method, which may differ from the name that the agent calls."""
    function: Callable[..., Any]
    conditions: Conditions
    """Mode (where the tool runs), timeout, retries and limit."""
    schema: Mapping[str, Any]
    """Schema in the OpenAI form."""
    signature: ArgumentReader
    terminal: bool = False

    @property
    def mode(self) -> WorkMode:
        """Place where the tool runs: inline, in a thread, on the loop or in a process."""
        return self.conditions.mode

    @property
    def timeout(self) -> float:
        """Timeout of a call, in seconds."""
        return self.conditions.seconds

    def validate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments as the method takes them; if they do not fit, raise a ToolError that says why in one
        line."""
        plain = self.signature.plain
        if plain is not None and len(arguments) == len(plain):
            # Most calls fit as they are; this check takes a fifth of pydantic's time.
            for name, kind in plain:
                if type(arguments.get(name)) is not kind:
                    break
            else:
                return arguments
        try:
            return self.signature.read(arguments)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = "; ".join(
                ".".join(map(str, item["loc"])) + ": " + " ".join(item["msg"].split()) for item in problems[:5]
            )
        except ToolError as error:
            wrong = str(error)
        raise ToolError(f"wrong arguments for {self.name}: {wrong}. {self.usage()}")

    def received(self, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the checked arguments as plain data: `arguments` itself if the check changed nothing."""
        plain_values = {name: as_received(arguments.get(name), value) for name, value in values.items()}
        same = plain_values.keys() == arguments.keys() and all(
            plain_values[name] is arguments[name] for name in plain_values
        )
        return arguments if same else plain_values

    def text(self, result: Any) -> str:
        """Return a result as text for the agent: a text as it is, all else as JSON; a `Done` if it ends the episode."""
        if type(result) is str and not self.terminal:
            return result
        result_text = result if isinstance(result, str) else as_json(self.name, result)
        return Done(result_text) if self.terminal and not isinstance(result_text, Done) else result_text

    def __deepcopy__(self, memo: object) -> "Tool":
        """Return the tool itself: it belongs to its class, and all its instances share its limit."""
        return self

    def usage(self) -> str:
        """Return one line that lists the tool's arguments."""
        parameters: Mapping[str, Any] = self.schema["function"]["parameters"]
        required = parameters.get("required", ())
        names = [name if name in required else f"{name} (optional)" for name in parameters["properties"]]
        return f"It takes: {', '.join(names) or 'no arguments'}"


def collect(owner: type) -> dict[str, Tool]:
    """Return the tools of a class by the agent's names for them, in the order in which they are written, base classes
    first."""
    attributes: dict[str, None] = {}
    for base in reversed(owner.__mro__):
        for key, value in vars(base).items():
            if _options(value) is not None:
                attributes[key] = None
            elif hidden := _wrapped(value):
                raise EnvironmentDefect(
                    f"{owner.__name__}.{key} is a tool inside a {hidden}, which the agent would not be offered; "
                    f"write a plain method with @tool and no {hidden}"
                )
    tools: dict[str, Tool] = {}
    for attribute in attributes:
        function = inspect.getattr_static(owner, attribute)
        if _options(function) is None:  # Overridden without the decorator: no longer a tool.
            continue
        added = make(function, attribute, owner.__name__)
        if added.name in tools:
            raise EnvironmentDefect(
                f"{owner.__name__} has two tools named {added.name!r} ({tools[added.name].attribute} and {attribute}); "
                "rename one with @tool(name=...)"
            )
        tools[added.name] = added
    return tools


def check_attributes(owner: Any, tools: Mapping[str, Tool], base: type) -> None:
    """Raise EnvironmentDefect if a tool's method would replace an attribute of `base`, a base class of `owner`."""
    for added in tools.values():
        if hasattr(base, added.attribute) or added.attribute in base.__annotations__:
            raise EnvironmentDefect(
                f"{owner.__name__}.{added.attribute} is a tool but replaces {base.__name__}.{added.attribute}; "
                f"rename the method and keep the agent's name with @tool(name={added.name!r})"
            )


def in_place(tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """Return copies of the tools that run in place, for an instance whose `async def` methods never wait."""
    return {
        name: replace(plain, conditions=replace(plain.conditions, mode=WorkMode.INLINE))
        for name, plain in tools.items()
    }


def _options(value: Any) -> ToolOptions | None:
    return getattr(value, _MARK, None) if inspect.isfunction(value) else None


def _wrapped(value: Any) -> str:
    """Return the kind of wrapper around a marked method, such as "staticmethod"; "" if there is none."""
    return type(value).__name__ if _options(inner_function(value)) is not None else ""


@cache
def make(function: Callable[..., Any], attribute: str, owner: str) -> Tool:
    """Return the tool of one decorated method."""
    options = _options(function)
    assert options is not None
    where = f"{owner}.{attribute}"
    summary, descriptions = read_docstring(function.__doc__)
    signature, parameters = read_signature(function, where, descriptions)
    name = options.name or attribute
    return Tool(
        name=name,
        attribute=attribute,
        function=function,
        conditions=Conditions(
            _mode(function, options, where),
            _TIMEOUT if options.timeout is None else options.timeout,
            options.retries,
            options.transient,
            limit_of(function, options.concurrency, options.per_second),
        ),
        schema={"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}},
        signature=signature,
        terminal=options.terminal,
    )


def _mode(function: Callable[..., Any], options: ToolOptions, where: str) -> WorkMode:
    """Return where a tool runs; raise EnvironmentDefect for options that cannot be enforced there."""
    asynchronous = inspect.iscoroutinefunction(function)
    kinds = [("blocking=True", options.blocking), ("process=True", options.process)]
    flags = [name for name, set_ in kinds if set_]
    if asynchronous and flags:
        drop = flags[0].removesuffix("=True")
        raise EnvironmentDefect(f"{where} is an async def with {flags[0]}; drop {drop}, it is for plain methods")
    if len(flags) == 2:
        raise EnvironmentDefect(f"{where} has blocking=True and process=True; a tool runs in one place, drop one")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise EnvironmentDefect(f"{where} is a generator; a tool returns its whole result, so drop the yield")
    if asynchronous:
        return WorkMode.ASYNC
    if options.blocking:
        return WorkMode.BLOCKING
    if options.process:
        check_process(function, where)
        return WorkMode.PROCESS
    for option in ("timeout", "concurrency", "per_second", "retries"):
        value = getattr(options, option)
        if value:
            raise EnvironmentDefect(
                f"{where} has {option}={value:g}, which cannot be enforced on a plain method that runs in place; "
                "add blocking=True, or make it async"
            )
    return WorkMode.INLINE
