"""Rewards that must be waited for: an `async def reward`, which asks a judge.

A reward runs like a call of an async tool: on the runner's loop, under a deadline, beside whatever else runs there. A
deadline that passes, or a judge that is gone, is a failure of ours: the episode ends BROKEN, and never with a 0.
Left out: asking a judge (the author's), and asking it again.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeGuard

from palaestra.envs.core.calls import Prepared
from palaestra.envs.core.tool import collect, tool
from palaestra.envs.running.runner import take_turn
from palaestra.episode import Event
from palaestra.errors import Broken

Outcome = Callable[[], Any]


class Verdict:
    """A reward that is being computed, as a call that a runner takes."""

    def __init__(
        self, awaited: Awaitable[Any], timeout: float, close: Callable[[Outcome], Event] | None = None
    ) -> None:
        """`close` makes the episode's last event of the outcome, where there is an episode to end."""
        self._awaited, self._timeout, self._close = awaited, timeout, close
        self._outcome: Outcome | None = None

    @tool
    async def settle(self) -> str:
        """Wait for the reward."""
        try:
            found = await self._awaited
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # Else it was late, and we have cancelled it.
                self._outcome = raises(Broken(f"its judge was cancelled: {error}"))
            raise
        except TimeoutError as error:  # A deadline of the judge's own.
            self._outcome = raises(Broken(f"its judge did not answer: TimeoutError: {error}"))
        except BaseException as error:  # The author's mistakes are raised where the episode is closed.
            self._outcome = raises(error)
        else:
            self._outcome = lambda: found
        return ""

    def call(self) -> Prepared:
        """The call, for a runner."""
        return Prepared("reward", tool=replace(_SETTLE, timeout=self._timeout), owner=self)

    def wait(self, slot: int = 0) -> bool:
        """Wait for the outcome; False when the deadline came first."""
        return take_turn("reward", slot, [self.call()])[1] is None

    def outcome(self) -> Any:
        """What the reward returned; raises what it raised, and Broken as long as it is not known."""
        if self._outcome is None:
            raise Broken(f"it took longer than reward_timeout = {self._timeout:g} s")
        return self._outcome()

    def event(self) -> Event:
        """How the episode ended."""
        assert self._close is not None
        return self._close(self.outcome)

    def __del__(self) -> None:
        """What was never awaited must not be complained about."""
        if inspect.iscoroutine(self._awaited) and inspect.getcoroutinestate(self._awaited) == inspect.CORO_CREATED:
            self._awaited.close()


_SETTLE = collect(Verdict)["settle"]


def waits(reward: Any) -> bool:
    """True where a reward has to be awaited, as far as one can tell without computing it."""
    return inspect.iscoroutinefunction(reward) or bool(getattr(reward, "waits", False))


def awaited(returned: Any) -> TypeGuard[Awaitable[Any]]:
    """True for what a reward returned that has to be waited for. A number is told apart at once."""
    return not isinstance(returned, float) and inspect.isawaitable(returned)


def complete(returned: Any, timeout: float) -> Any:
    """What a reward returned, waited for where that is needed. A deadline that passes is Broken."""
    if not awaited(returned):
        return returned
    verdict = Verdict(returned, timeout)
    verdict.wait()
    return verdict.outcome()


def raises(error: BaseException) -> Outcome:
    """An outcome that is an exception."""

    def outcome() -> Any:
        raise error

    return outcome
