"""The base of toolkits that use a service (a sandbox, an index, a browser): the budgets of an episode.

Each call is counted and timed; the agent gets an error when a budget is used up. Left out: opening services
(`envs.core.backends`), and what a call does.
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
    """How much of its budgets an episode has used so far."""

    calls: int = 0
    seconds: float = 0.0


class BudgetedToolkit(Toolkit):
    """Base of toolkits with budgets. Settings are class attributes: a subclass changes them.

    The `start` and `restore` of a subclass must set `usage`; its tools do their work through `within_budget`.
    """

    call_seconds: float = 30.0
    """Maximum seconds of one call."""
    max_calls: int | None = None
    """Maximum number of calls in an episode; further ones are refused. None: no limit."""
    max_seconds: float | None = None
    """Maximum seconds of all calls of an episode together. None: no limit."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_budgets(cls)

    usage: BudgetUsage = BudgetUsage()

    def never_waits(self) -> None:
        """Let this instance's tools run without an event loop: their service works in this process and never waits.

        The caller then runs an `async def` directly to its end, which takes microseconds.
        """
        self.set_tools(in_place(self.tools))

    async def within_budget(self, work: Callable[[float], Awaitable[T]]) -> T:
        """Do the work of a call and count its time. `work` gets the seconds that it may take, and must keep to them."""
        seconds = self.admit()
        began = time.perf_counter()
        try:
            return await work(seconds)
        finally:
            self.count(time.perf_counter() - began)

    def admit(self) -> float:
        """Count a call and return the seconds that it may take. Raise ToolError if a budget is used up."""
        usage = self.usage
        if self.max_calls is not None and usage.calls >= self.max_calls:
            raise ToolError(f"no call is left: max_calls is {self.max_calls} for an episode; answer with what you have")
        remaining_seconds = self.call_seconds if self.max_seconds is None else self.max_seconds - usage.seconds
        if remaining_seconds <= 0:
            raise ToolError(f"no time is left: max_seconds is {self.max_seconds:g} for an episode; answer now")
        self.usage = usage._replace(calls=usage.calls + 1)
        return min(remaining_seconds, self.call_seconds)

    def late(self, seconds: float, service: str, trouble: str) -> ToolError | Broken:
        """Return the error for a service that did not answer within `seconds`.

        This is Broken, but a ToolError if the episode's budget was shorter than a call may take, and there is no
        `trouble`.
        """
        if seconds < self.call_seconds and not trouble:
            return ToolError(f"no time is left: max_seconds is {self.max_seconds:g} for an episode; answer now")
        message = f"{service} gave no answer within {seconds:g} s (call_seconds={self.call_seconds:g})"
        return Broken(f"{message}: {trouble}" if trouble else message)

    def count(self, seconds: float) -> None:
        """Add the seconds that a call has taken to the usage."""
        self.usage = self.usage._replace(seconds=self.usage.seconds + seconds)


def with_timeout(tools: Mapping[str, Tool], seconds: float) -> dict[str, Tool]:
    """Return these tools with an outer timeout of at least this many seconds."""
    return {
        name: replace(tool, conditions=replace(tool.conditions, seconds=max(tool.timeout, seconds)))
        for name, tool in tools.items()
    }
