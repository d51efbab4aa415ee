"""Tools that share the state of one episode: a Python session, a page, a database.

An environment names them in `toolkits`. Each running episode has its own instances, which start when it begins and
close when it ends. Left out: taking snapshots of whole episodes (`branches`).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from typing import Any, ClassVar

import numpy as np

from palaestra.envs.core.tool import Tool, check_attributes, collect
from palaestra.envs.running.work import WorkMode
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect, UsageError


class Toolkit:
    """Base of toolkits: methods marked with `@tool` are offered to the agent.

    `start`, `close` and `final` may each be an `async def`. Plain ones run in place if the toolkit has tools and none
    of them is blocking, async or in a process; else they run in a thread.

    The calls of one turn run concurrently, so a toolkit with blocking or async tools must guard its state. If a call
    exceeds its deadline, `close` is called from another thread while the call still runs.
    """

    tools: ClassVar[dict[str, Tool]] = {}
    per_seat: ClassVar[bool] = False
    """In a game: whether each seat has an instance of its own, or all share one."""
    seat: str | None = None
    """Seat of a game that calls the tool which runs, or that the instance belongs to (`per_seat`); None for neither."""
    namespace: ClassVar[str] = ""
    """What is put before a tool's name, with a "_", if another toolkit of the environment has a tool of the same name;
    "" makes this an error."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = collect(cls)
        check_attributes(cls, cls.tools, Toolkit)

    def set_tools(self, tools: Mapping[str, Tool]) -> None:
        """Replace the tools of the class by these, for this instance only."""
        object.__setattr__(self, "tools", tools)

    def name_of(self, method: str) -> str:
        """Return the name under which the agent may call a method, for results that mention a tool."""
        return next((name for name, tool in self.tools.items() if tool.attribute == method), method)

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """Prepare the toolkit for an episode. An exception ends the episode BROKEN, since the agent has not acted yet.

        Errors that the next episode would meet too are raised instead: UsageError, SandboxUnavailable, MissingExtra.
        """

    def close(self) -> None:
        """Release the episode's resources. It is also called for a dropped episode, and again if `start` ends after the
        episode was dropped."""

    def final(self) -> Mapping[str, Any]:
        """Return the part of the final state that the reward may see, as plain data: it becomes `attempt.final`.

        It is called once, when the episode ends, before the toolkit is closed; in a game also after each round.
        """
        return {}

    def snapshot(self) -> Any:
        """Return the toolkit's state of this episode, for a snapshot. It is copied deeply with the episode.

        A handle of an external resource, such as a session, needs a `__deepcopy__`, and must work after `close` too.
        """
        raise UsageError(f"{type(self).__name__} has no snapshots; write snapshot(self) and restore(self, state)")

    def restore(self, state: Any) -> None:
        """Restore `state`; it is called in place of `start`. `state` is a copy that belongs to this toolkit."""
        raise UsageError(f"{type(self).__name__} has no snapshots; write snapshot(self) and restore(self, state)")


def as_called_by(kit: Toolkit, seat: str) -> Toolkit:
    """Return a shared toolkit as a seat calls it: the same state, with `seat` set. Several seats may call at once."""
    cls: Any = type(kit)
    called: Toolkit = object.__new__(_with_seat(cls, seat))
    called.__dict__ = kit.__dict__
    return called


@lru_cache(maxsize=256)
def _with_seat(cls: Any, seat: str) -> Any:
    names = {"seat": seat, **{name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}}
    return type(cls.__name__, (cls,), names)


def check_toolkits(owner: str, toolkits: object) -> None:
    """Raise EnvironmentDefect unless the value is a sequence of toolkit classes, or of functions that make toolkits."""
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


def merge(owner: str, tools: Mapping[str, Tool], kits: Iterable[tuple[str, Mapping[str, Tool]]]) -> dict[str, Tool]:
    """Return the environment's and its toolkits' tools by name; raise EnvironmentDefect if two have the same name."""
    table = dict(tools)
    for kit, offered in kits:
        for name, tool in offered.items():
            if name in table:
                raise EnvironmentDefect(
                    f"{owner} has two tools named {name!r}, one of them in {kit}; rename one with @tool(name=...), or "
                    f"with palaestra.envs.offer({kit}, rename={{{name!r}: ...}})"
                )
            table[name] = tool
    return table


def tools_of(make: Any) -> Mapping[str, Tool]:
    """Return the tools of a toolkit class, or of the toolkit that a function makes; the function is called for this."""
    if isinstance(make, partial) and hasattr(make.func, "tools"):
        make = make.func
    tools: Mapping[str, Tool] | None = getattr(make, "tools", None)
    return make().tools if tools is None else tools


def mode_of(kit: Toolkit, method: str) -> WorkMode:
    """Return the place (mode) in which `start`, `close` or `final` of a toolkit runs."""
    if iscoroutinefunction(getattr(kit, method)):
        return WorkMode.ASYNC
    waits = not kit.tools or any(tool.mode is not WorkMode.INLINE for tool in kit.tools.values())
    return WorkMode.BLOCKING if waits else WorkMode.INLINE
