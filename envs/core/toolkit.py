"""Tools that share the state of one episode: a Python session, a page, a database.

An environment names them in `toolkits`; each episode that runs has instances of its own, started when it begins and
closed when it ends. Left out: taking snapshots of whole episodes (`branches`).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, ClassVar

import numpy as np

from palaestra.envs.core.signature import check_method
from palaestra.envs.core.tool import Tool, collect
from palaestra.envs.running.work import Mode
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
        for found in cls.tools.values():
            if hasattr(Toolkit, found.attribute):
                raise EnvironmentDefect(
                    f"{cls.__name__}.{found.attribute} is a tool but replaces Toolkit.{found.attribute}; "
                    f"rename the method and keep the agent's name with @tool(name={found.name!r})"
                )
        for name in ("start", "close", "final", "snapshot", "restore"):
            check_method(cls, name, getattr(Toolkit, name), awaited=name in ("start", "close", "final"))

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """An episode begins. An exception here ends it BROKEN, since the agent has not acted yet.

        What the next episode would meet too is raised instead: UsageError, SandboxUnavailable, MissingExtra.
        """

    def close(self) -> None:
        """The episode is over; also called when it never ran to its end, and once more where nobody waited for that."""

    def final(self) -> Mapping[str, Any]:
        """What of the final state the reward may see, as plain data: it becomes `attempt.final`.

        Taken once, when the episode ends, before the toolkit is closed; in a game also after each round.
        """
        return {}

    def snapshot(self) -> Any:
        """What the episode has left here, for branches. It is copied deeply, together with the rest of the episode.

        What stands for something outside (a session's handle) defines `__deepcopy__`, and outlives `close`.
        """
        raise UsageError(f"{type(self).__name__} has no snapshots; write snapshot(self) and restore(self, state)")

    def restore(self, state: Any) -> None:
        """Stand where `state` was taken, in place of `start`. `state` is a copy of our own."""
        raise UsageError(f"{type(self).__name__} has no snapshots; write snapshot(self) and restore(self, state)")


def check_toolkits(owner: str, toolkits: object) -> None:
    """Refuse what is no sequence of toolkits' classes, or of functions that make toolkits."""
    makers = toolkits if isinstance(toolkits, tuple | list) else (toolkits,)
    names = [one.__name__ if isinstance(one, type) else type(one).__name__ for one in makers]
    wanted = f"expected a tuple of classes: toolkits = ({', '.join(names)},)"
    for one, name in zip(makers, names, strict=True):
        if isinstance(one, Toolkit):
            raise EnvironmentDefect(
                f"{owner}.toolkits has an instance of {name}, and every environment makes its own; {wanted}, or "
                f"functools.partial({name}, ...) where it takes arguments"
            )
        made = one.func if isinstance(one, partial) else one
        if isinstance(made, type) and not issubclass(made, Toolkit):
            raise EnvironmentDefect(
                f"{owner}.toolkits has {made.__name__}, which is no toolkit; write class {made.__name__}(Toolkit)"
            )
        if not callable(one):
            raise EnvironmentDefect(
                f"{owner}.toolkits has {one!r:.60}; expected classes of toolkits, or functions that make one"
            )
    if makers is not toolkits:
        raise EnvironmentDefect(f"{owner}.toolkits is {names[0]}, which is no tuple; {wanted}")


def merge(owner: str, tools: Mapping[str, Tool], kits: Sequence[tuple[str, Mapping[str, Tool]]]) -> dict[str, Tool]:
    """The environment's tools and its toolkits', by name."""
    table = dict(tools)
    for kit, offered in kits:
        for name, found in offered.items():
            if name in table:
                raise EnvironmentDefect(
                    f"{owner} has two tools named {name!r}, one of them in {kit}; rename one with @tool(name=...)"
                )
            table[name] = found
    return table


def tools_of(make: Any) -> Mapping[str, Tool]:
    """A toolkit's tools; a factory's are not known before it is called, and it is called once to ask."""
    if isinstance(make, partial) and isinstance(make.func, type):
        make = make.func
    found: Mapping[str, Tool] | None = getattr(make, "tools", None)
    return make().tools if found is None else found


def mode_of(kit: Toolkit, method: str) -> Mode:
    """Where `start`, `close` or `final` of a toolkit runs."""
    if iscoroutinefunction(getattr(kit, method)):
        return Mode.ASYNC
    waits = not kit.tools or any(one.mode is not Mode.INLINE for one in kit.tools.values())
    return Mode.BLOCKING if waits else Mode.INLINE
