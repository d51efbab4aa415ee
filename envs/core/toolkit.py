"""Tools that share the state of one episode: a Python session, a page, a database.

An environment names them in `toolkits`; each episode that runs has instances of its own, started when it begins and
closed when it ends. Left out: taking snapshots of whole episodes (`branches`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, ClassVar

import numpy as np

from palaestra.envs.core.tool import Tool, check_attributes, collect
from palaestra.envs.running.work import WorkMode
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UsageError


class Toolkit:
    """Base of toolkits: methods marked with `@tool` are offered to the agent.

    `start`, `close` and `final` may each be an `async def`. Those that are plain run in a thread where a tool of the
    toolkit waits, or where it has none; a toolkit whose tools all only compute starts, closes and is read in place.

    The calls of one turn run concurrently, so a toolkit with blocking or async tools guards its state.
    After a call passes its deadline, `close` comes from another thread while the call still runs.
    """

    tools: ClassVar[dict[str, Tool]] = {}
    per_seat: ClassVar[bool] = False
    """In a game: whether each seat has an instance of its own, or all share one."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = collect(cls)
        check_attributes(cls, cls.tools, Toolkit)

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Begin an episode. An exception here ends it BROKEN, since the agent has not acted yet.

        Errors that the next episode would meet too are raised: UsageError, SandboxUnavailable, MissingExtra.
        """

    def close(self) -> None:
        """Release the episode's resources; also called for a dropped episode, and again if its start ends late."""

    def final(self) -> Mapping[str, Any]:
        """Return the part of the final state that the reward may see, as plain data: it becomes `attempt.final`.

        It is called once, when the episode ends, before the toolkit is closed; in a game also after each round.
        """
        return {}

    def snapshot(self) -> Any:
        """Return the state that the episode has left here, for branches. It is copied deeply with the episode.

        A handle of something outside (a session) defines `__deepcopy__`, and outlives `close`.
        """
        raise UsageError(f"{type(self).__name__} has no snapshots; write snapshot(self) and restore(self, state)")

    def restore(self, state: Any) -> None:
        """Restore `state`, in place of `start`. `state` is a copy that belongs to this toolkit."""
        raise UsageError(f"{type(self).__name__} has no snapshots; write snapshot(self) and restore(self, state)")


def check_toolkits(owner: str, toolkits: object) -> None:
    """Refuse a value that is not a sequence of toolkit classes, or of functions that make toolkits."""
    expected = "expected a tuple of toolkit classes, or of functions that make toolkits, such as toolkits = (Python,)"
    if not isinstance(toolkits, tuple | list):
        raise EnvironmentDefect(f"{owner}.toolkits is {toolkits!r:.60}; {expected}")
    for maker in toolkits:
        factory = maker.func if isinstance(maker, partial) else maker
        if isinstance(factory, type) and not issubclass(factory, Toolkit):
            raise EnvironmentDefect(
                f"{owner}.toolkits has {factory.__name__}, which is no toolkit; write class {factory.__name__}(Toolkit)"
            )
        if not callable(maker):
            raise EnvironmentDefect(f"{owner}.toolkits has {maker!r:.60}; {expected}")


def merge(owner: str, tools: Mapping[str, Tool], kits: Sequence[tuple[str, Mapping[str, Tool]]]) -> dict[str, Tool]:
    """Return the environment's tools and its toolkits' tools, by name."""
    table = dict(tools)
    for kit, offered in kits:
        for name, tool in offered.items():
            if name in table:
                raise EnvironmentDefect(
                    f"{owner} has two tools named {name!r}, one of them in {kit}; rename one with @tool(name=...)"
                )
            table[name] = tool
    return table


def tools_of(make: Any) -> Mapping[str, Tool]:
    """Return a toolkit's tools. A factory is called once, because its tools are not known before."""
    if isinstance(make, partial) and isinstance(make.func, type):
        make = make.func
    tools: Mapping[str, Tool] | None = getattr(make, "tools", None)
    return make().tools if tools is None else tools


def mode_of(kit: Toolkit, method: str) -> WorkMode:
    """Return where `start`, `close` or `final` of a toolkit runs."""
    if iscoroutinefunction(getattr(kit, method)):
        return WorkMode.ASYNC
    waits = not kit.tools or any(tool.mode is not WorkMode.INLINE for tool in kit.tools.values())
    return WorkMode.BLOCKING if waits else WorkMode.INLINE
