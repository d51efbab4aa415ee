"""One call of a tool: from what the agent wrote, over the check of its arguments, to the text it is told.

Three roads meet here and stay apart: the agent's mistake and a tool that fails are answers to the agent, only
`Broken` is ours. A failure that its tool declared transient is tried again. Left out: threads and deadlines
(`envs.running.runner`).
"""

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from palaestra.envs.core.tool import Mode, Tool
from palaestra.envs.running.limits import Limit
from palaestra.episode import Call, Status
from palaestra.errors import Broken, ToolError
from palaestra.formats import Fault, ParsedCall

log = logging.getLogger("palaestra.envs")
_logged: set[tuple[str, str, str]] = set()
_MAX_NAME = 64
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_spread = random.Random()
"""Of its own, so that no episode's randomness depends on a server's failures."""


@dataclass(slots=True)
class Prepared:
    """A call that is ready to run, or already answered because nothing can be run."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tool: Tool | None = None
    owner: Any = None
    """The environment or toolkit whose method it is."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The arguments after their check."""
    call: Call | None = None
    """The answer, where it is known without running anything."""

    @property
    def mode(self) -> Mode:
        """Where it runs; an answered call needs no place."""
        return Mode.INLINE if self.tool is None else self.tool.mode

    @property
    def limit(self) -> Limit | None:
        """What it shares its tool's limit with, over all environments."""
        return None if self.tool is None else self.tool.limit


def refused(name: str, arguments: Mapping[str, Any], reason: str) -> Prepared:
    """A call that is answered with a reason instead of being run."""
    return Prepared(name, arguments, call=Call(name, arguments, clean(f"Error: {reason}"), Status.BAD_CALL))


def prepare(
    item: ParsedCall | Fault, tools: Mapping[str, Tool], owners: Mapping[str, Any], default_owner: Any
) -> Prepared:
    """Look up the tool and check the arguments."""
    if isinstance(item, Fault):
        return refused("", {}, item.text)
    name, arguments = item.name, item.arguments
    tool = tools.get(name)
    if tool is None:
        return refused(name[:_MAX_NAME], arguments, _unknown(name, list(tools)))
    try:
        values = tool.validate(arguments)
    except ToolError as error:
        return refused(name, arguments, str(error))
    except Exception as error:  # An author's own validator may raise anything.
        return refused(name, arguments, f"wrong arguments for {name}: {type(error).__name__}")
    return Prepared(name, arguments, tool, owners.get(name, default_owner), values)


def _unknown(name: str, tools: Sequence[str]) -> str:
    """Names the tools, closest first."""
    if not tools:
        return "there are no tools here; answer directly"
    close = get_close_matches(name[:_MAX_NAME], tools, n=len(tools), cutoff=0.0)
    return f"no tool is named {name[:_MAX_NAME]!r}; the tools are: {', '.join(close)}"


def run(prepared: Prepared, until: float = float("inf")) -> Call:
    """Run a plain tool in the calling thread. `until` ends the tries of one that failed by a transient error."""
    tool = prepared.tool
    if tool is None:
        assert prepared.call is not None
        return prepared.call
    begun = time.perf_counter()
    attempt = 0
    while True:
        try:
            result = getattr(prepared.owner, tool.attribute)(**prepared.values)
            return answered(prepared, result, time.perf_counter() - begun)
        except (Exception, SystemExit) as error:
            pause = _pause(tool, error, attempt, until)
            if pause is None:
                return failed(prepared, error, time.perf_counter() - begun)
        attempt += 1
        time.sleep(pause)


async def run_async(prepared: Prepared, until: float = float("inf")) -> Call:
    """Run an `async def` tool."""
    assert prepared.tool is not None
    begun = time.perf_counter()
    attempt = 0
    while True:
        try:
            result = await getattr(prepared.owner, prepared.tool.attribute)(**prepared.values)
            return answered(prepared, result, time.perf_counter() - begun)
        except (Exception, SystemExit) as error:
            pause = _pause(prepared.tool, error, attempt, until)
            if pause is None:
                return failed(prepared, error, time.perf_counter() - begun)
        attempt += 1
        await asyncio.sleep(pause)


def _pause(tool: Tool, error: BaseException, attempt: int, until: float) -> float | None:
    """Seconds to wait before another try, or None where there is none."""
    if attempt >= tool.retries or not isinstance(error, tool.transient) or isinstance(error, ToolError):
        return None
    # Spread out: slots that failed together must not come back together.
    pause = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * _spread.uniform(0.5, 1.5)
    if tool.limit is not None:
        pause = max(pause, tool.limit.delay())
    return pause if time.monotonic() + pause < until else None


def answered(prepared: Prepared, result: Any, seconds: float) -> Call:
    """The call that a tool's result makes."""
    try:
        text = result if isinstance(result, str) else "" if result is None else str(result)
    except Exception as error:
        return failed(prepared, error, seconds)
    return Call(prepared.name, prepared.arguments, text, Status.OK, seconds)


def failed(prepared: Prepared, error: BaseException, seconds: float = 0.0) -> Call:
    """What an exception of a tool comes to. BROKEN for `Broken` alone: an agent may crash a tool on purpose."""
    if isinstance(error, Broken):
        return Call(prepared.name, prepared.arguments, f"{prepared.name}: {error}", Status.BROKEN, seconds)
    try:
        message = str(error)
    except Exception:  # An exception of the author's may fail even to say what it is.
        message = ""
    if not isinstance(error, ToolError):
        kind = type(error).__name__
        message = f"{kind}: {message}" if message else kind
        key = (type(prepared.owner).__name__, prepared.name, kind)
        if key not in _logged:
            _logged.add(key)
            log.warning("tool %s.%s raised %s (told to the agent; logged once)", *key, exc_info=error)
    return Call(prepared.name, prepared.arguments, f"Error: {message}", Status.TOOL_ERROR, seconds)


def clean(text: str) -> str:
    """Without lone surrogates, which no tokenizer or file takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def clip(text: str, limit: int) -> str:
    """At most `limit` characters: head and tail, and the true size between them."""
    if not text.isascii():
        text = clean(text)
    if len(text) <= limit:
        return text
    note = f"\n[... {len(text)} characters in all, cut to {limit} ...]\n"
    room = limit - len(note)
    if room < 2:
        return text[: max(limit, 0)]
    return text[: room - room // 2] + note + text[len(text) - room // 2 :]
