"""What a slot does beside the agent's calls: start its toolkits, close them, wait for a reward, step a game.

Each runs as a call that no agent sees, so it has a thread or the loop, a deadline, and a line in the stall report. An
environment whose toolkits only hold tools that run in place has no such errands: they start and close in place too, in
the thread that runs their tools. An environment that is driven by itself runs its own in the same way. Left out: what
follows from an errand (`slots`).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from palaestra.envs.core.calls import Prepared
from palaestra.envs.core.tool import Mode, Tool, collect, tool
from palaestra.envs.core.toolkit import Toolkit, close_all
from palaestra.envs.running.runner import take_turn
from palaestra.episode import Call, Event, Status
from palaestra.errors import Broken

if TYPE_CHECKING:
    from palaestra.envs.core.equipment import Equipped
    from palaestra.envs.core.machine import EpisodeMachine

log = logging.getLogger("palaestra.envs")


class Opening:
    """The start of a slot's toolkits; those of an episode that was dropped close first."""

    def __init__(self, env: "EpisodeMachine", close_first: bool) -> None:
        self._env = env
        self._close_first = close_first
        self._fault = ""
        self._error: BaseException | None = None
        self._dropped: Sequence[Toolkit] | None = None

    @tool(blocking=True)
    def start(self) -> str:
        """Start them."""
        try:
            if self._close_first:
                close_all(self._env._kits or ())
            self._fault = self._env.start_toolkits()
        except BaseException as error:  # An author's mistake is raised where the slot's event is received.
            self._error = error
        if self._dropped is not None:
            close_all(self._dropped or self._env._kits or ())
        return ""

    def drop(self) -> None:
        """Nobody waits any more: what still starts is closed once more by the thread that started it."""
        self._dropped = self._env._kits or ()

    def call(self) -> Prepared:
        """The call, for a runner."""
        return Prepared("toolkits.start", tool=replace(_START, timeout=self._env.start_timeout), owner=self)

    def event(self, calls: Sequence[Call]) -> Event:
        """The episode's first event; `calls` is the call above, over."""
        if self._error is not None:
            raise self._error
        refused = calls[0].status is Status.BROKEN  # No thread took it, since too many hang.
        return self._env.opened(calls[0].text if refused else self._fault)


class Closing:
    """The end of a slot's toolkits. Nothing that they do changes the event that waits for them."""

    def __init__(self, kits: Sequence[Toolkit], event: Event | None = None) -> None:
        self._kits = kits
        self.event = event

    @tool(blocking=True)
    def close(self) -> str:
        """Close them."""
        close_all(self._kits)
        return ""

    def call(self, seconds: float) -> Prepared:
        """The call, for a runner."""
        return Prepared("toolkits.close", tool=replace(_CLOSE, timeout=seconds), owner=self)


class Work:
    """A function that may wait, and is nobody's tool: a step of a game."""

    def __init__(self, work: Callable[[], Any], seconds: float) -> None:
        self._work, self._seconds = work, seconds
        self._result: Any = None
        self._error: BaseException | None = None

    @tool(blocking=True)
    def perform(self) -> str:
        """Do it."""
        try:
            self._result = self._work()
        except BaseException as error:  # Raised where its outcome is taken down.
            self._error = error
        return ""

    def call(self) -> Prepared:
        """The call, for a runner."""
        return Prepared("step", tool=replace(_PERFORM, timeout=self._seconds), owner=self)

    def outcome(self, calls: Sequence[Call]) -> Any:
        """What came of it, or raises what it raised; `calls` is the call above, over."""
        if calls[0].status is Status.BROKEN:  # No thread took it, since too many hang.
            raise Broken(calls[0].text)
        if self._error is not None:
            raise self._error
        return self._result


_START: Tool = collect(Opening)["start"]
_CLOSE: Tool = collect(Closing)["close"]
_PERFORM: Tool = collect(Work)["perform"]


def kit_tools(make: Callable[[], Toolkit]) -> Sequence[Tool]:
    """A toolkit's tools; a factory's are not known before it is called, and it is called once to ask."""
    if isinstance(make, partial) and isinstance(make.func, type):
        make = make.func
    known: Any = getattr(make, "tools", None)
    return tuple((make().tools if known is None else known).values())


def may_wait(toolkits: Sequence[Callable[[], Toolkit]]) -> bool:
    """True where one of these may wait as it starts or closes: one with tools that wait, or with none."""
    kits = [kit_tools(make) for make in toolkits]
    return any(not tools or any(one.mode is not Mode.INLINE for one in tools) for tools in kits)


def open_in_time(env: "EpisodeMachine") -> Event:
    """Start the toolkits of an environment that is driven by itself, and wait for them."""
    if not env.toolkits_wait:
        return env.opened(env.start_toolkits())
    opening = Opening(env, close_first=False)
    calls, late = take_turn(type(env).__name__, env.slot, [opening.call()])
    if late is None:
        return opening.event(calls)
    opening.drop()
    env.abandon()
    return env.opened(env.late(late))


def close_in_time(env: "Equipped") -> None:
    """Close the toolkits of an environment that is driven by itself. What hangs is left to itself, for new ones."""
    kits = env._kits or ()
    if not env.toolkits_wait:
        close_all(kits)
    elif take_turn(type(env).__name__, env.slot, [Closing(kits).call(env.close_timeout)])[1] is not None:
        log.warning("%s: toolkits did not close within %g s", type(env).__name__, env.close_timeout)
        env._kits = None
