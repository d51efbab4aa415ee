"""Checks of code that makes all other episodes wait: code that blocks the event loop, and slow plain code.

Left out: the drawing of tasks, and the rounds of a game (`check` times whole games).
"""

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from palaestra.envs.checks.at_once import alone, left_alone
from palaestra.envs.checks.cheats import arguments
from palaestra.envs.checks.findings import Groundless, Unmet, require
from palaestra.envs.checks.trials import Chair, Subject
from palaestra.envs.core.state import episode_of
from palaestra.envs.core.tool import Tool
from palaestra.envs.core.toolkit import Toolkit, mode_of
from palaestra.envs.running.holdups import ADVICE, HELD_SECONDS, blocking_line
from palaestra.envs.running.work import WorkMode
from palaestra.episode import Attempt
from palaestra.errors import Broken, ToolError

LOOP_SECONDS = 3.0
"""Seconds for which an async tool is watched for calls that block the event loop."""
IN_PLACE_SECONDS = 0.5
"""Seconds that a reward, or the start of toolkits, may take between two steps of all other episodes."""
_TRIES = 3
_HOPELESS = 4


def others_are_never_held_up(subject: Subject) -> None:
    """Require that no tool, reward or start of toolkits keeps the other episodes from running."""
    for chair in subject.chairs():
        try:
            _require_running(chair, subject)
        except (Unmet, Broken):
            raise
        except Exception:  # Another check reports what an author's code raises.
            chair.machine.discard()


def _require_running(chair: Chair, subject: Subject) -> None:
    table = chair.spec.offers[chair.seat].table
    plain = any(tool.conditions.mode is WorkMode.INLINE for tool in table.values())
    attempt = alone(subject, chair).attempt if plain and subject.demonstrator is not None else None
    # Stand-in arguments may find nothing to do, which a demonstrator's do.
    earnest = {call.name: call.written or call.arguments for call in (attempt.calls if attempt else ())}
    library_tools = {name for _, kit in chair.machine.kits.make() if _is_ours(kit) for name in kit.tools}
    table = {name: tool for name, tool in table.items() if name not in library_tools}
    chair.let_last(subject.slow)
    if any(tool.mode is WorkMode.ASYNC for tool in table.values()) and chair.begin().ending is not None:
        return
    for name, tool in table.items():
        if tool.conditions.mode is WorkMode.ASYNC:
            _require_awaiting(chair, tool)
        elif tool.conditions.mode is WorkMode.INLINE:
            for tool_arguments in (earnest.get(name), arguments(tool.schema)):
                if tool_arguments is not None:
                    _require_quick_tool(subject, chair, name, tool_arguments)
    kits = [kit for _, kit in chair.machine.kits.instances or ()]
    if kits and all(mode_of(kit, "start") is WorkMode.INLINE for kit in kits):
        _require_quick(
            "the start of its toolkits",
            chair.begin,
            "toolkits with plain tools alone start and close in place, without a deadline; where one has an async "
            "tool, or one with @tool(blocking=True), they start beside the others, within deadlines['start']",
        )
    ended = left_alone(subject, chair).attempt if chair.spec.has_reward else None
    if ended is not None:
        for answer in (None, str(ended.task.answer)):
            _require_reward(chair, replace(ended, answer=answer))


def _is_ours(kit: Toolkit) -> bool:
    """Return whether a toolkit is one of palaestra's, whose tools wait as they should."""
    return type(kit).__module__.startswith("palaestra.envs.tools.")


def _require_quick_tool(subject: Subject, chair: Chair, name: str, arguments: Mapping[str, Any]) -> None:
    def seconds() -> float:
        if not chair.ready(subject.slow):
            return 0.0
        chair.say(chair.call(name, **arguments))
        assert chair.machine.state is not None
        return sum(call.seconds for call in chair.machine.state.seats[chair.seat].calls[-1:])

    _require_less(f"the plain tool {name!r}", seconds, HELD_SECONDS, f" for {str(dict(arguments))[:80]}, {ADVICE}")


def _require_awaiting(chair: Chair, tool: Tool) -> None:
    state = chair.machine.state
    assert state is not None
    owner = state.owners.get(chair.seat, {}).get(tool.name, state.play)
    try:
        values = tool.validate(arguments(tool.schema))
    except ToolError:
        return
    coroutine = getattr(owner, tool.attribute)(**values)
    _require_free(f"the async tool {tool.name!r}", coroutine, type(owner), "@tool(blocking=True)")


def _require_reward(chair: Chair, attempt: Attempt) -> None:
    author = episode_of(chair.spec.author, attempt.task, 0)
    if inspect.iscoroutine(coroutine := author.reward(attempt)):
        _require_free("the async reward", coroutine, type(author), "asyncio.to_thread")
        return
    _require_quick(
        "the plain reward",
        lambda: author.reward(attempt),
        "write it as an async def that awaits what waits there, or hands it to asyncio.to_thread",
    )


def _require_quick(what: str, does: Callable[[], Any], instead: str) -> None:
    def seconds() -> float:
        begins = time.monotonic()
        does()
        return time.monotonic() - begins

    _require_less(what, seconds, IN_PLACE_SECONDS, f", and every other episode waits for it; {instead}")


def _require_less(what: str, seconds: Callable[[], float], limit: float, finding: str) -> None:
    """Require that one of _TRIES tries takes less than `limit` seconds: several, because the computer may pause."""
    took = inf
    for _ in range(_TRIES):
        took = min(took, seconds())
        if took < limit:
            return
        if took > _HOPELESS * limit:  # No pause of the computer takes so long.
            break
    require(False, f"{what} took {took:.1f} s{finding}", Groundless)


def _require_free(what: str, coroutine: Any, owner: type, instead: str) -> None:
    line = blocking_line(coroutine, inspect.getfile(owner), LOOP_SECONDS)
    require(
        not line,
        f"{what} blocked the event loop for more than {HELD_SECONDS:g} s ({line}), and every other episode with it; "
        f"await what waits there, or use {instead}",
        Groundless,
    )
