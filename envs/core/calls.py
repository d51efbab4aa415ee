"""One tool call: the check of its arguments, running the tool, and the text of the result.

If the agent makes a mistake or a tool fails, the agent sees an error text. Only `Broken` is a failure of the
infrastructure. Left out: threads, deadlines and retries (`envs.running`).
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
"""Maximum characters of a result that a process sends; the agent sees far fewer."""
_NONE: Mapping[str, Any] = {}


class Prepared:
    """A call that is ready to run: its tool exists, and its arguments are checked."""

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

    def run_in_place(self) -> Call:
        """Run the call in this thread, and return its record."""
        error, value, started = None, None, time.perf_counter()
        try:
            value = getattr(self.owner, self.tool.attribute)(**self.values)
            if type(value) is CoroutineType:  # A toolkit declared that its async tools never wait (`tool.in_place`).
                value = _run_without_waiting(value)
        except (Exception, SystemExit) as tool_error:
            error = tool_error
        seconds = time.perf_counter() - started
        if seconds > HELD_SECONDS:  # It delays all other episodes.
            note_slow(self.tool.name, type(self.owner).__name__, seconds)
        return self.succeeded(value, seconds) if error is None else self.failed(error, seconds)

    def call(self, work: Work) -> Call:
        """Return the record of the call, from the outcome of its job."""
        if work.error is not None:
            return self.failed(work.error, work.seconds)
        if self.tool.conditions.mode is WorkMode.PROCESS:
            status, text, answer, seconds = work.value
            return Call(self.tool.name, self.arguments, text, Status(status), seconds, self.written, answer)
        return self.succeeded(work.value, work.seconds)

    def succeeded(self, value: Any, seconds: float) -> Call:
        """Return the record of the call from the tool's result; a Done ends the episode."""
        tool, answer = self.tool, None
        if type(value) is not str or tool.terminal:
            try:
                value = tool.text(value)
            except EnvironmentDefect:
                raise
            except Exception as error:  # The result has no text: its __str__ raised.
                return self.failed(error, seconds)
            answer, value = (value.answer if isinstance(value, Done) else None), str(value)
        return Call(tool.name, self.arguments, value, Status.OK, seconds, self.written, answer)

    def failed(self, error: BaseException, seconds: float) -> Call:
        """Return the record of a call that raised. Only `Broken` gives BROKEN: an agent may crash a tool on purpose."""
        name, status = self.tool.name, Status.TOOL_ERROR
        try:
            message = str(error)
        except Exception:  # The __str__ of an author's exception may raise too.
            message = ""
        if isinstance(error, Broken):
            status, message = Status.BROKEN, f"{name}: {message}"
        elif isinstance(error, ToolError):
            message = f"Error: {message}"
        else:
            kind = type(error).__name__
            message = f"Error: {kind}: {message}" if message else f"Error: {kind}"
            key = (type(self.owner).__name__, name, kind)
            if key not in _logged:
                _logged.add(key)
                log.warning("tool %s.%s raised %s (shown to the agent; logged once)", *key, exc_info=error)
        return Call(name, self.arguments, message, status, seconds, self.written)


def clip_call(call: Call, max_shown: int, max_recorded: int) -> Call:
    """Return a call with its text cut to `max_shown` characters for the agent. If it was longer, `result` keeps up to
    `max_recorded` characters of it for the reward."""
    text = call.text
    return replace(
        call,
        text=clip(text, max_shown),
        result=clip(text, max_recorded) if len(text) > max_shown and max_recorded > max_shown else call.result,
        answer=None if call.answer is None else clip(call.answer, max(max_shown, max_recorded)),
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
    """Look up the tool and check the arguments; return the call, ready to run, or its record if it was refused. With
    `eager`, run a tool that only computes in place, and return its record."""
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
    prepared = Prepared(tool, owner, values, arguments, None if arguments is written else written)
    return prepared.run_in_place() if eager and tool.conditions.mode is WorkMode.INLINE else prepared


def prepare_turn(
    written: Sequence[ParsedCall | CallParseError],
    tools: Mapping[str, Tool],
    owners: Mapping[str, Any],
    default: Any,
    eager: bool,
    limit: int,
) -> list[Any]:
    """Prepare the first `limit` calls of a turn, in order; one more record says that the others were not run."""
    items: list[Any] = [prepare(item, tools, owners, default, eager) for item in written[:limit]]
    if len(written) > limit:
        items.append(refused("", _NONE, f"only {limit} calls are run in a turn; the rest were not"))
    return items


def _run_without_waiting(coroutine: Any) -> Any:
    """Return the result of an `async def` that never waits; raise Broken if it waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise Broken("it waits, though its toolkit says that it never does")


def load_call(data: Mapping[str, Any]) -> Callable[[float], Sequence[Any]]:
    """Return a function that runs the described call in this worker process; its argument is the timeout in seconds."""
    function = reduce(getattr, data["function"].split("."), module_of(data["module"], data["main"]))
    tool = make(function, data["attribute"], data["owner"])
    values = tool.validate(data["arguments"])
    prepared = Prepared(tool, None, values, data["arguments"], None)
    work = Work(tool.name, partial(function, None, **values), tool.conditions)

    def begin(seconds: float) -> Sequence[Any]:
        work.started_at = time.monotonic()
        work.perform()
        if work.error is None:
            call = prepared.succeeded(work.value, work.seconds)
        else:
            call = prepared.failed(work.error, work.seconds)
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
    """Return at most `limit` characters of a text, shortened by `cut`, without lone surrogates."""
    if not text.isascii():
        text = clean(text)
    return cut(text, limit)
