"""The base of toolkits that use a service (a sandbox, an index, a browser): the budgets of an episode.

A call is admitted, timed and counted; the agent is told if a budget is used up. Left out: opening
services (`envs.core.backends`), and what a call does.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from palaestra.envs.core.tool import Tool, in_place
from palaestra.envs.core.toolkit import Toolkit
from palaestra.envs.tools.settings import check_budgets
from palaestra.errors import Broken, ToolError

T = TypeVar("T")


class BudgetUsage(NamedTuple):
    """Usage of the budgets of an episode so far."""

    calls: int = 0
    seconds: float = 0.0


class BudgetedToolkit(Toolkit):
    """Base of toolkits with budgets. Settings are class attributes: a subclass changes them.

    `start` and `restore` of a subclass set `usage`; its tools do their work through `within_budget`.
    """

    call_seconds: float = 30.0
    """Seconds that one call may take."""
    max_calls: int | None = None
    """Calls that are run in an episode."""
    max_seconds: float | None = None
    """Seconds that the calls of an episode may take together."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_budgets(cls)

    usage: BudgetUsage = BudgetUsage()

    def set_tools(self, tools: Mapping[str, Tool]) -> None:
        """Give this instance tools in place of those of its class."""
        object.__setattr__(self, "tools", tools)

    def never_waits(self) -> None:
        """Run this instance's tools in place: their service computes in this process, so none of their awaits waits.

        The caller then runs an `async def` to its end, which takes microseconds, without an event loop.
        """
        self.set_tools(in_place(self.tools))

    async def within_budget(self, work: Callable[[float], Awaitable[T]]) -> T:
        """Do the work of a call; it gets the seconds that it may take, and keeps to them itself."""
        seconds = self.admit()
        began = time.perf_counter()
        try:
            return await work(seconds)
        finally:
            self.count(time.perf_counter() - began)

    def admit(self) -> float:
        """Count a call and return the seconds that it may take; raise ToolError if no budget is left."""
        usage = self.usage
        if self.max_calls is not None and usage.calls >= self.max_calls:
            raise ToolError(f"no call is left: max_calls is {self.max_calls} for an episode; answer with what you have")
        remaining_seconds = self.call_seconds if self.max_seconds is None else self.max_seconds - usage.seconds
        if remaining_seconds <= 0:
            raise ToolError(f"no time is left: max_seconds is {self.max_seconds:g} for an episode; answer now")
        self.usage = usage._replace(calls=usage.calls + 1)
        return min(remaining_seconds, self.call_seconds)

    def late(self, seconds: float, service: str, trouble: str) -> ToolError | Broken:
        """Return the error for a late service: the budget is used up, or with `trouble` the service is lost."""
        if seconds < self.call_seconds and not trouble:
            return ToolError(f"no time is left: max_seconds is {self.max_seconds:g} for an episode; answer now")
        message = f"{service} gave no answer within {seconds:g} s (call_seconds={self.call_seconds:g})"
        return Broken(f"{message}: {trouble}" if trouble else message)

    def count(self, seconds: float) -> None:
        """Add the seconds that a call has taken."""
        self.usage = self.usage._replace(seconds=self.usage.seconds + seconds)


def with_timeout(tools: Mapping[str, Tool], seconds: float) -> dict[str, Tool]:
    """Return these tools with an outer timeout of at least this many seconds."""
    return {
        name: replace(tool, conditions=replace(tool.conditions, seconds=max(tool.timeout, seconds)))
        for name, tool in tools.items()
    }
