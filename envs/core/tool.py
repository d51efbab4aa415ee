"""The decorator that makes a typed method a tool, and what a class knows about its tools.

What an author wrote is checked when the class is made (`signature` reads the parameters). A tool checks a call's
arguments and makes the text of a result. Left out: running a call (`calls`), and threads, loops, processes and further
tries (`envs.running`).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, TypeVar, overload

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from palaestra.envs.core.result import Done, as_json, as_received
from palaestra.envs.core.signature import ArgumentReader, check_process, inner_function, read_docstring, read_signature
from palaestra.envs.running.limits import limit_of
from palaestra.envs.running.work import Conditions, Mode
from palaestra.errors import EnvironmentDefect, ToolError

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__palaestra_tool__"
_TIMEOUT = 30.0
_NAME = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"


@checked(frozen=True, slots=True, config=ConfigDict(strict=True, extra="forbid"))
class ToolOptions:
    """What was written at the decorator."""

    name: Annotated[str, Field(pattern=_NAME)] | None = None
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

    `timeout` is our own deadline for tools that do not run in place, 30 seconds by default. Passing it ends the episode
    BROKEN, so a tool that runs the agent's programs keeps a shorter limit of its own and raises ToolError. `blocking`
    sends a waiting method to a thread. `process` sends a method that never uses `self` to a process of its own, which
    the time-out kills: that, and its death, are answers to the agent. `concurrency` (calls at once) and `per_second`
    (calls begun) hold for all environments of this Python process; waiting for them does not count against `timeout`.
    `retries` more attempts follow a `transient` exception, within `timeout`; one that outlives them is the
    infrastructure's failure and ends the episode BROKEN. So a `transient` exception that the agent's own input causes,
    such as an address that it chose, is caught and raised as ToolError. A call of a `terminal` tool that succeeds ends
    the episode: what it returned is the answer.
    """
    if isinstance(options.get("transient"), type):
        options["transient"] = (options["transient"],)
    try:
        made = ToolOptions(**options)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        option = str(found["loc"][0])
        known = [field.name for field in fields(ToolOptions)]
        if option not in known:
            close = get_close_matches(option, known, n=1)
            hint = f"is {close[0]!r} meant?" if close else f"expected {', '.join(known)}"
            raise EnvironmentDefect(f"@tool has no option {option!r}; {hint}") from None
        raise EnvironmentDefect(f"@tool({option}={options[option]!r}): {found['msg']}") from None

    def mark(method: Any) -> Any:
        if not inspect.isfunction(method):
            raise EnvironmentDefect(
                f"@tool was put on a {type(method).__name__}; put it directly on a method (above no other decorator)"
            )
        setattr(method, _MARK, made)
        return method

    return mark if function is None else mark(function)


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    """A tool as its class knows it; the instance that owns it comes with the call."""

    name: str
    attribute: str
    """The method's name, which may differ from what the agent calls."""
    function: Callable[..., Any]
    conditions: Conditions
    """Where it runs, and for how long."""
    schema: Mapping[str, Any]
    """In the OpenAI form."""
    signature: ArgumentReader
    terminal: bool = False

    @property
    def mode(self) -> Mode:
        """Where it runs."""
        return self.conditions.mode

    @property
    def timeout(self) -> float:
        """Our own deadline, in seconds."""
        return self.conditions.seconds

    def validate(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as the method wants them; a ToolError in one line where they do not fit."""
        plain = self.signature.plain
        if plain is not None and len(arguments) == len(plain):
            # Most calls fit as they are; seeing that takes a fifth of the time in which pydantic says the same.
            for name, kind in plain:
                if type(arguments.get(name)) is not kind:
                    break
            else:
                return arguments
        try:
            return self.signature.read(arguments)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = "; ".join(
                ".".join(map(str, item["loc"])) + ": " + " ".join(item["msg"].split()) for item in found[:5]
            )
        except ToolError as error:
            wrong = str(error)
        raise ToolError(f"wrong arguments for {self.name}: {wrong}. {self.usage()}")

    def received(self, arguments: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the method receives as plain data: `arguments` itself where their check changed nothing."""
        found = {name: as_received(arguments.get(name), value) for name, value in values.items()}
        same = found.keys() == arguments.keys() and all(found[name] is arguments[name] for name in found)
        return arguments if same else found

    def text(self, result: Any) -> str:
        """What a result tells the agent: a text as it is, all else as JSON. A `Done` where it ends the episode."""
        if type(result) is str and not self.terminal:
            return result
        told = result if isinstance(result, str) else as_json(self.name, result)
        return Done(told) if self.terminal and not isinstance(told, Done) else told

    def __deepcopy__(self, memo: object) -> "Tool":
        """Itself: it belongs to its class, and its limit to all."""
        return self

    def usage(self) -> str:
        """One line that says what the tool takes."""
        parameters: Mapping[str, Any] = self.schema["function"]["parameters"]
        required = parameters.get("required", ())
        names = [name if name in required else f"{name} (optional)" for name in parameters["properties"]]
        return f"It takes: {', '.join(names) or 'no arguments'}"


def collect(owner: type) -> dict[str, Tool]:
    """The tools of a class by the names the agent uses, in the order they were written, base classes first."""
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
    found: dict[str, Tool] = {}
    for attribute in attributes:
        function = inspect.getattr_static(owner, attribute)
        if _options(function) is None:  # Overridden without the decorator: no longer a tool.
            continue
        made = make(function, attribute, owner.__name__)
        if made.name in found:
            raise EnvironmentDefect(
                f"{owner.__name__} has two tools named {made.name!r} ({found[made.name].attribute} and {attribute}); "
                "rename one with @tool(name=...)"
            )
        found[made.name] = made
    return found


def in_place(tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """The same tools, run by whoever calls them: for an instance whose `async def` methods never wait."""
    return {
        name: replace(found, conditions=replace(found.conditions, mode=Mode.INLINE)) for name, found in tools.items()
    }


def _options(value: Any) -> ToolOptions | None:
    return getattr(value, _MARK, None) if inspect.isfunction(value) else None


def _wrapped(value: Any) -> str:
    """The kind of what a marked method was put into, such as a staticmethod; "" where there is none."""
    return type(value).__name__ if _options(inner_function(value)) is not None else ""


@cache
def make(function: Callable[..., Any], attribute: str, owner: str) -> Tool:
    """Read one decorated method."""
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


def _mode(function: Callable[..., Any], options: ToolOptions, where: str) -> Mode:
    """Where it runs; options that could not be kept there are refused."""
    asynchronous = inspect.iscoroutinefunction(function)
    kinds = [("blocking=True", options.blocking), ("process=True", options.process)]
    given = [name for name, set_ in kinds if set_]
    if asynchronous and given:
        drop = given[0].removesuffix("=True")
        raise EnvironmentDefect(f"{where} is an async def with {given[0]}; drop {drop}, it is for plain methods")
    if len(given) == 2:
        raise EnvironmentDefect(f"{where} has blocking=True and process=True; a tool runs in one place, drop one")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise EnvironmentDefect(f"{where} is a generator; a tool returns its whole result, so drop the yield")
    if asynchronous:
        return Mode.ASYNC
    if options.blocking:
        return Mode.BLOCKING
    if options.process:
        check_process(function, where)
        return Mode.PROCESS
    for option in ("timeout", "concurrency", "per_second", "retries"):
        value = getattr(options, option)
        if value:
            raise EnvironmentDefect(
                f"{where} has {option}={value:g}, which cannot be enforced on a plain method that runs in place; "
                "add blocking=True, or make it async"
            )
    return Mode.INLINE
