"""One tool call: from the agent's text, over the check of its arguments, to the text of its result.

Three cases are kept apart: a mistake of the agent and a failure of a tool are results that the agent sees, only
`Broken` is a fault of the infrastructure. Left out: threads, deadlines and retries (`envs.running`).
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial, reduce
from types import CoroutineType
from typing import Any

from palaestra.envs.core.result import Done
from palaestra.envs.core.tool import Tool, make
from palaestra.envs.running.holdups import HELD_SECONDS, note_slow
from palaestra.envs.running.process_child import main_file, module_of
from palaestra.envs.running.work import InProcess, Work, WorkMode
from palaestra.episode import Call, Status
from palaestra.errors import Broken, EnvironmentDefect, ToolError
from palaestra.formats import CallParseError, ParsedCall
from palaestra.shortening import cut

log = logging.getLogger("palaestra.envs")
_logged: set[tuple[str, str, str]] = set()
_MAX_NAME = 64
_MAX_TEXT = 2**24
"""Most characters of a result that a process sends; the agent sees far fewer."""
_NONE: Mapping[str, Any] = {}


class Prepared:
    """A call that is ready to run."""

    __slots__ = ("arguments", "owner", "tool", "values", "written")

    def __init__(
        self, tool: Tool, owner: Any, values: Mapping[str, Any], arguments: Mapping[str, Any], written: Any
    ) -> None:
        self.tool, self.owner = tool, owner
        """`owner` is the environment or toolkit that has the method."""
        self.values, self.arguments, self.written = values, arguments, written
        """Arguments of the method; the same as plain data; what the agent wrote, or None where that is the same."""

    def work(self) -> Work:
        """Return the job that runs this call."""
        tool = self.tool
        if tool.conditions.mode is WorkMode.PROCESS:
            function: Any = tool.function
            run: Any = InProcess(
                "palaestra.envs.core.calls:load_call",
                {
                    "module": function.__module__,
                    "function": function.__qualname__,
                    "attribute": tool.attribute,
                    "owner": type(self.owner).__name__,
                    "arguments": self.arguments if self.written is None else self.written,
                    "main": main_file(),
                },
            )
        else:
            run = partial(getattr(self.owner, tool.attribute), **self.values)
        return Work(tool.name, run, tool.conditions, self.arguments)

    def call(self, work: Work) -> Call:
        """Return the record of the call, from the outcome of its job."""
        about = (self.tool, self.owner, self.arguments, self.written)
        if work.error is not None:
            return failed(*about, work.error, work.seconds)
        if self.tool.conditions.mode is WorkMode.PROCESS:
            status, text, answer, seconds = work.value
            return Call(self.tool.name, self.arguments, text, Status(status), seconds, self.written, answer)
        return answered(*about, work.value, work.seconds)


def answered(
    tool: Tool, owner: Any, arguments: Mapping[str, Any], written: Mapping[str, Any] | None, value: Any, seconds: float
) -> Call:
    """Return the record of a call from the tool's result; a Done ends the episode."""
    if type(value) is str and not tool.terminal:
        return Call(tool.name, arguments, value, Status.OK, seconds, written)
    try:
        value = tool.text(value)
    except EnvironmentDefect:
        raise
    except Exception as error:  # The result has no text: its __str__ raised.
        return failed(tool, owner, arguments, written, error, seconds)
    answer = value.answer if isinstance(value, Done) else None
    return Call(tool.name, arguments, str(value), Status.OK, seconds, written, answer)


def failed(
    tool: Tool,
    owner: Any,
    arguments: Mapping[str, Any],
    written: Mapping[str, Any] | None,
    error: BaseException,
    seconds: float,
) -> Call:
    """Return the record of a call that raised. Only `Broken` gives BROKEN: an agent may crash a tool on purpose."""
    name = tool.name
    if isinstance(error, Broken):
        return Call(name, arguments, f"{name}: {error}", Status.BROKEN, seconds, written)
    try:
        message = str(error)
    except Exception:  # The __str__ of an author's exception may raise too.
        message = ""
    if not isinstance(error, ToolError):
        kind = type(error).__name__
        message = f"{kind}: {message}" if message else kind
        key = (type(owner).__name__, name, kind)
        if key not in _logged:
            _logged.add(key)
            log.warning("tool %s.%s raised %s (shown to the agent; logged once)", *key, exc_info=error)
    return Call(name, arguments, f"Error: {message}", Status.TOOL_ERROR, seconds, written)


def shown(call: Call, room: int, kept: int) -> Call:
    """Return a call as it is recorded: its text as the agent sees it, and up to `kept` characters for the reward."""
    text, whole = clip(call.text, room), call.text
    return replace(
        call,
        text=text,
        result=clip(whole, kept) if len(whole) > room and kept > room else call.result,
        answer=None if call.answer is None else clip(call.answer, max(room, kept)),
    )


def refused(name: str, arguments: Mapping[str, Any], reason: str) -> Call:
    """Return the record of a call that is answered with a reason instead of being run."""
    return Call(name, arguments, clean(f"Error: {reason}"), Status.BAD_CALL)


def prepare(
    item: ParsedCall | CallParseError,
    tools: Mapping[str, Tool],
    owners: Mapping[str, Any],
    default: Any,
    eager: bool = True,
) -> Prepared | Call:
    """Look up the tool and check the arguments. A tool that only computes runs in place, if `eager`."""
    if isinstance(item, CallParseError):
        return refused("", _NONE, item.text)
    name, written = item.name, item.arguments
    tool = tools.get(name)
    if tool is None:
        return refused(name[:_MAX_NAME], written, _unknown(name, list(tools)))
    owner = owners.get(name, default) if owners else default
    if owner is not default:
        tool = owner.tools.get(name, tool)  # A toolkit's instance may have its own deadlines.
    try:
        values = tool.validate(written)
        arguments = written if values is written else tool.received(written, values)
    except ToolError as error:
        return refused(name, written, str(error))
    except Exception as error:  # An author's own validator may raise anything.
        return refused(name, written, f"wrong arguments for {name}: {type(error).__name__}")
    differs = None if arguments is written else written
    if not eager or tool.conditions.mode is not WorkMode.INLINE:
        return Prepared(tool, owner, values, arguments, differs)
    started = time.perf_counter()
    try:
        value = getattr(owner, tool.attribute)(**values)
        if type(value) is CoroutineType:  # A toolkit declared that its async tools never wait (`tool.in_place`).
            value = _at_once(value)
    except (Exception, SystemExit) as error:
        return failed(tool, owner, arguments, differs, error, _took(tool, owner, started))
    return answered(tool, owner, arguments, differs, value, _took(tool, owner, started))


def _at_once(run: Any) -> Any:
    """Return the result of an `async def` that never waits."""
    try:
        run.send(None)
    except StopIteration as done:
        return done.value
    run.close()
    raise Broken("it waits, though its toolkit says that it never does")


def _took(tool: Tool, owner: Any, begun: float) -> float:
    """Return the seconds since `begun`; log a tool that delays all other episodes."""
    seconds = time.perf_counter() - begun
    if seconds > HELD_SECONDS:
        note_slow(tool.name, type(owner).__name__, seconds)
    return seconds


def load_call(data: Mapping[str, Any]) -> Callable[[float], Sequence[Any]]:
    """Return a function that runs a tool by its name in another process, given its timeout in seconds."""
    function = reduce(getattr, data["function"].split("."), module_of(data["module"], data["main"]))
    tool = make(function, data["attribute"], data["owner"])
    values = tool.validate(data["arguments"])
    work = Work(tool.name, partial(function, None, **values), tool.conditions)

    def begin(seconds: float) -> Sequence[Any]:
        work.begun = time.monotonic()
        work.perform()
        make_call: Any = failed if work.error else answered
        call = make_call(tool, None, data["arguments"], None, work.error or work.value, work.seconds)
        return [call.status, clip(call.text, _MAX_TEXT), call.answer, work.seconds]

    return begin


def _unknown(name: str, tools: Sequence[str]) -> str:
    """Return an error text that lists the tools, closest name first."""
    if not tools:
        return "there are no tools here; answer directly"
    close = get_close_matches(name[:_MAX_NAME], tools, n=len(tools), cutoff=0.0)
    return f"no tool is named {name[:_MAX_NAME]!r}; the tools are: {', '.join(close)}"


def clean(text: str) -> str:
    """Return the text without lone surrogates, which no tokenizer or file accepts."""
    return text.encode("utf-8", "replace").decode("utf-8")


def clip(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, without lone surrogates (`cut`)."""
    if not text.isascii():
        text = clean(text)
    return cut(text, limit)
