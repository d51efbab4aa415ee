"""The decorator that makes a typed method a tool, and what a class knows about its tools.

What an author wrote is checked when the class is made (`signature` reads the parameters). Left out: running a call
(`envs.core.calls`) and choosing a thread, loop or process for it (`envs.running.runner`).
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from palaestra.envs.core.docstring import read_docstring
from palaestra.envs.core.signature import Signature, inner_function, read_signature
from palaestra.envs.running.limits import Limit, limit_of
from palaestra.envs.running.work import Conditions, Mode
from palaestra.errors import EnvironmentDefect, ToolError

Method = TypeVar("Method", bound=Callable[..., Any])
_MARK = "__palaestra_tool__"
_TIMEOUT = 30.0


class Done(str):
    def __new__(cls, text="", answer=None):
        made = super().__new__(cls, text)
        made.answer = text if answer is None else answer
        return made


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What was written at the decorator."""

    name: str | None = None
    timeout: float | None = None
    blocking: bool = False
    process: bool = False
    concurrency: int | None = None
    per_second: float | None = None
    retries: int = 0
    transient: tuple[type[Exception], ...] = ()
    terminal: bool = False

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise EnvironmentDefect(
                f"@tool(name={self.name!r}); expected a letter, then at most 63 letters, digits or _ . - behind it"
            )
        for option in ("timeout", "per_second"):
            value = getattr(self, option)
            if value is not None and not (_is_number(value) and value > 0):
                raise EnvironmentDefect(f"@tool({option}={value!r}); expected a positive number")
        for option, least in (("concurrency", 1), ("retries", 0)):
            value = getattr(self, option)
            if value is not None and not (type(value) is int and value >= least):
                raise EnvironmentDefect(f"@tool({option}={value!r}); expected a whole number, at least {least}")
        for error in self.transient:
            if not (isinstance(error, type) and issubclass(error, Exception)) or issubclass(error, ToolError):
                raise EnvironmentDefect(
                    f"@tool(transient=...) names {error!r}; expected classes of exceptions that another try may cure, "
                    "such as ConnectionError (ToolError is an answer, and never tried again)"
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
    hidden: bool = False,
) -> Callable[[Method], Method]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Offer a method to the agent. Every parameter needs a type; the docstring becomes the description.

    `timeout` is our own deadline for tools that do not run in place, 30 seconds by default. Passing it ends the episode
    BROKEN, so a tool that runs the agent's programs keeps a shorter limit of its own and raises ToolError. `blocking`
    sends a waiting method to a thread. `process` sends a method that never uses `self` to a process of its own, which
    the time-out kills: that, and its death, are answers to the agent. `concurrency` (calls at once) and `per_second`
    (calls begun) hold for all environments of this Python process; waiting for them does not count against `timeout`.
    `retries` more attempts follow a `transient` exception, within `timeout`. A call of a `terminal` tool that succeeds
    ends the episode: what it returned is the answer. A `hidden` tool is unknown until the agent finds it by
    `find_tools`, which is then offered too.
    """
    known = [field.name for field in fields(ToolOptions)]
    for option in options:
        if option not in known:
            close = get_close_matches(option, known, n=1)
            hint = f"is {close[0]!r} meant?" if close else f"expected {', '.join(known)}"
            raise EnvironmentDefect(f"@tool has no option {option!r}; {hint}")
    transient = options.get("transient", ())
    if isinstance(transient, type):
        options["transient"] = (transient,)
    elif not isinstance(transient, tuple):
        raise EnvironmentDefect(f"@tool(transient={transient!r}); expected a tuple of exception classes")
    made = ToolOptions(**options)

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
    mode: Mode
    timeout: float
    schema: Mapping[str, Any]
    """In the OpenAI form."""
    signature: Signature
    limit: Limit | None = None
    """Shared by all environments of this process."""
    retries: int = 0
    transient: tuple[type[Exception], ...] = ()
    terminal: bool = False
    conditions: Conditions = field(init=False)

    def __post_init__(self) -> None:
        made = Conditions(self.mode, self.timeout, self.retries, self.transient, self.limit)
        object.__setattr__(self, "conditions", made)

    def text(self, result):
        if isinstance(result, str):
            return Done(result) if self.terminal and not isinstance(result, Done) else result
        t = "" if result is None else str(result)
        return Done(t) if self.terminal else t

    def validate(self, arguments: Mapping[str, Any]):
        """The arguments as the method wants them; a ToolError in one line where they do not fit."""
        try:
            v = self.signature.read(arguments)
            return v, arguments if v is arguments else v
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = "; ".join(
                ".".join(map(str, item["loc"])) + ": " + " ".join(item["msg"].split()) for item in found[:5]
            )
            raise ToolError(f"wrong arguments for {self.name}: {wrong}. {self.usage()}") from None

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


def _options(value: Any) -> ToolOptions | None:
    return getattr(value, _MARK, None) if inspect.isfunction(value) else None


def _wrapped(value: Any) -> str:
    """The kind of what a marked method was put into, such as a staticmethod; "" where there is none."""
    return type(value).__name__ if _options(inner_function(value)) is not None else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@cache
def make(function: Callable[..., Any], attribute: str, owner: str) -> Tool:
    """Read one decorated method."""
    options = _options(function)
    assert options is not None
    where = f"{owner}.{attribute}"
    mode = _mode(function, options, where)
    summary, descriptions = read_docstring(function.__doc__)
    signature, parameters = read_signature(function, where, descriptions)
    name = options.name or attribute
    return Tool(
        name=name,
        attribute=attribute,
        function=function,
        mode=mode,
        timeout=_TIMEOUT if options.timeout is None else options.timeout,
        schema={"type": "function", "function": {"name": name, "description": summary, "parameters": parameters}},
        signature=signature,
        limit=limit_of(function, options.concurrency, options.per_second),
        retries=options.retries,
        transient=options.transient,
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
        _check_process(function, where)
        return Mode.PROCESS
    for option in ("timeout", "concurrency", "per_second", "retries"):
        value = getattr(options, option)
        if value:
            raise EnvironmentDefect(
                f"{where} has {option}={value:g}, which cannot be enforced on a plain method that runs in place; "
                "add blocking=True, or make it async"
            )
    return Mode.INLINE


def _check_process(function: Callable[..., Any], where: str) -> None:
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
