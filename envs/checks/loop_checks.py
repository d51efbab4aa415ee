"""What keeps all episodes of a vector environment waiting: code that blocks the event loop, or is slow in place.

Left out: tools that are slow in place (`@tool(blocking=True)` is for them), and the drawing of tasks.
"""

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from palaestra.envs.checks.cheats import arguments
from palaestra.envs.checks.findings import require
from palaestra.envs.checks.trials import Opened, begun
from palaestra.envs.core.env import ToolEnv
from palaestra.envs.running.blocking import PATIENCE, blocking_line
from palaestra.episode import Start
from palaestra.errors import ToolError

LOOP_SECONDS = 3.0
"""How long an async tool is watched for calls that block the event loop."""
IN_PLACE_SECONDS = 0.5
"""What may take place between two steps of all other episodes."""
_TRIES = 3


def loop_is_never_blocked(env_id: str) -> None:
    """No tool, reward or start of toolkits keeps the other episodes from running."""
    with Opened(env_id) as env:
        env.reset(seed=0)
        for name, found in env._table.items():
            owner = env._owners.get(name, env)
            method = getattr(owner, found.attribute)
            if inspect.iscoroutinefunction(method):
                try:
                    values = found.validate(arguments(found.schema))
                except ToolError:
                    continue
                _require_free(f"the async tool {name!r}", method(**values), type(owner), "@tool(blocking=True)")
        env.discard()
        if env.toolkits and not env.toolkits_wait:
            _require_quick(
                "the start of its toolkits",
                lambda: begun(env, Start(0, seed=0)),
                "toolkits with plain tools alone start and close in place, without a deadline; where one has an async "
                "tool, or one with @tool(blocking=True), they start beside the others, within start_timeout",
            )
        env.reset(seed=0)
        for answer in (None, str(env.problem.answer)):
            _require_reward(env, answer)


def _require_reward(env: ToolEnv, answer: str | None) -> None:
    attempt = replace(env.attempt, answer=answer)
    if inspect.iscoroutine(judged := env.reward(attempt)):
        _require_free("the async reward", judged, type(env), "asyncio.to_thread")
        return
    _require_quick(
        "the plain reward",
        lambda: env.reward(attempt),
        "write it as an async def that awaits what waits there, or hands it to asyncio.to_thread",
    )


def _require_quick(what: str, does: Callable[[], Any], instead: str) -> None:
    """It takes little time, at least once: a machine may stand still for a while."""
    took = float("inf")
    for _ in range(_TRIES):
        begins = time.monotonic()
        does()
        took = min(took, time.monotonic() - begins)
        if took < IN_PLACE_SECONDS:
            return
    require(False, f"{what} took {took:.1f} s, and every other episode waits for it; {instead}")


def _require_free(what: str, coroutine: Any, owner: type, instead: str) -> None:
    line = blocking_line(coroutine, inspect.getfile(owner), LOOP_SECONDS)
    require(
        not line,
        f"{what} blocked the event loop for more than {2 * PATIENCE:g} s ({line}), and every other episode with it; "
        f"await what waits there, or use {instead}",
    )
