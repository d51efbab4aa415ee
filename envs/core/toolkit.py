"""Tools that share the state of one episode: a Python session, a page, a folder.

An environment names them in `toolkits`; each gets its own instance per environment, started when an episode
begins and closed when it ends. Left out until it is needed: snapshots for branching.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from palaestra.envs.core.tool import Tool, collect
from palaestra.episode import Task
from palaestra.errors import EnvironmentDefect

log = logging.getLogger("palaestra.envs")


class Toolkit:
    """Base of toolkits: methods marked with `@tool` are offered to the agent.

    The calls of one turn run concurrently, so a toolkit with blocking or async tools guards its state.
    After a call passes its deadline, `close` comes from another thread while the call still runs.
    """

    tools: ClassVar[dict[str, Tool]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = collect(cls)
        for found in cls.tools.values():
            if hasattr(Toolkit, found.attribute):
                raise EnvironmentDefect(
                    f"{cls.__name__}.{found.attribute} is a tool but replaces Toolkit.{found.attribute}; "
                    f"rename the method and keep the agent's name with @tool(name={found.name!r})"
                )

    def start(self, task: Task, rng: np.random.Generator) -> None:
        """An episode begins. Any exception here ends it BROKEN: the agent has not acted yet."""

    def close(self) -> None:
        """The episode is over; also called when it never ran to its end."""


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


def close_all(kits: Sequence[Toolkit]) -> None:
    """Close every toolkit; one that fails to close changes nothing about the episode."""
    for kit in kits:
        try:
            kit.close()
        except Exception as error:
            log.warning("toolkit %s did not close: %s: %s", type(kit).__name__, type(error).__name__, error)
