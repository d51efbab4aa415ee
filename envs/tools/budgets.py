"""What toolkits share that use a service (a sandbox, an index, a browser): budgets of an episode, and where it runs.

A call is admitted, takes its time, and is counted; a budget that is spent is told to the agent. Left out: opening
services (`envs.core.backends`), and what a call does.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from palaestra.envs.core.tool import in_place
from palaestra.envs.core.toolkit import Toolkit
from palaestra.envs.tools.settings import check_budgets
from palaestra.errors import ToolError

T = TypeVar("T")


class Spent(NamedTuple):
    """What an episode has used of its budgets."""

    calls: int = 0
    seconds: float = 0.0


class BudgetedToolkit(Toolkit):
    """Base of toolkits with budgets. Settings are class attributes: a subclass changes them.

    `start` and `restore` of a subclass set `spent`; its tools do their work through `within_budget`.
    """

    call_seconds: float = 30.0
    """What one call may take."""
    max_calls: int | None = None
    """Calls that are run in an episode."""
    max_seconds: float | None = None
    """Seconds that the calls of an episode may take together."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_budgets(cls)

    spent: Spent = Spent()

    def never_waits(self) -> None:
        """Run this instance's tools in place: their service computes here, so that none of their awaits waits.

        An `async def` is then run to its end by its caller, which takes microseconds in place of a trip to a loop.
        """
        object.__setattr__(self, "tools", in_place(self.tools))  # in place of the class's

    async def within_budget(self, work: Callable[[float], Awaitable[T]]) -> T:
        """Do the work of a call, which is told the seconds that it may take and keeps to them itself."""
        seconds = self.admit()
        begun = time.perf_counter()
        try:
            return await work(seconds)
        finally:
            self.count(time.perf_counter() - begun)

    def admit(self) -> float:
        """Count a call; the seconds that it may take. A ToolError where no budget is left."""
        spent = self.spent
        if self.max_calls is not None and spent.calls >= self.max_calls:
            raise ToolError(f"no call is left: max_calls is {self.max_calls} for an episode; answer with what you have")
        left = self.call_seconds if self.max_seconds is None else self.max_seconds - spent.seconds
        if left <= 0:
            raise ToolError(f"no time is left: max_seconds is {self.max_seconds:g} for an episode; answer now")
        self.spent = spent._replace(calls=spent.calls + 1)
        return min(left, self.call_seconds)

    def count(self, seconds: float) -> None:
        """Count the time that a call has taken."""
        self.spent = self.spent._replace(seconds=self.spent.seconds + seconds)
