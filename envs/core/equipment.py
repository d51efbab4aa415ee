"""What an episode has at hand: its problem, its source of randomness, the tools it offers, and its toolkits.

Toolkits are made when the first episode begins and kept for the next ones. Left out: what happens in an episode
(`machine`), and deadlines (`envs.running.errands`).
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.utils import seeding

from palaestra.authorship import foreign_line
from palaestra.envs.core.authored import Authored
from palaestra.envs.core.discovery import FIND, Finder, divide
from palaestra.envs.core.tool import Tool
from palaestra.envs.core.toolkit import Toolkit, check_toolkits, close_all, described, merge
from palaestra.envs.running.errands import close_in_time, may_wait
from palaestra.episode import Start, Task
from palaestra.errors import EnvironmentDefect, MissingExtra, SandboxUnavailable, UsageError

_PERMANENT = (EnvironmentDefect, UsageError, MissingExtra, SandboxUnavailable)
"""What the next episode would meet again: somebody has to change the options, the environment or the machine."""


class Equipped(Authored):
    """The part of the episode machine that keeps its tools."""

    slot: int = 0
    """Which place of a vector environment this is."""
    problem: Task
    """The current task, for tools to read."""

    _tools: ClassVar[dict[str, Tool]] = {}
    # Class-level defaults keep an idle environment small.
    _kits: tuple[Toolkit, ...] | None = None
    _owners: Mapping[str, Toolkit | Finder] = {}
    _table: Mapping[str, Tool] = {}
    """The tools that are offered."""
    _schemas: tuple[Mapping[str, Any], ...] = ()
    _described: str = ""
    """The same as JSON."""
    _hidden: Mapping[str, Tool] = {}
    _found: Mapping[str, Tool] = {}
    """Hidden tools that this episode has found."""
    _terminal: frozenset[str] = frozenset()
    """The tools whose success ends the episode."""
    closes_toolkits: bool = True
    """False where whoever drives this environment closes them, under a deadline."""
    _toolkits_wait: bool | None = None
    _start: Start | None = None
    """What opened the episode that runs, or the last one."""

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """What the agent is told of the tools of this episode."""
        return self._schemas

    @property
    def toolkits_wait(self) -> bool:
        """True where a toolkit may wait as it starts or closes."""
        if self._toolkits_wait is None:
            check_toolkits(type(self).__name__, self.toolkits)  # A constructor may have set them.
            self._toolkits_wait = may_wait(self.toolkits)
        return self._toolkits_wait

    def start_toolkits(self) -> str:
        """Make the toolkits if there are none yet, and start them; what broke, or "". What cannot heal is raised."""
        if not self.toolkits:
            if not self._table:
                self._offer(self._tools)
            return ""
        start = self._start
        try:
            kits = self._kits or tuple(make() for make in self.toolkits)
            if self._kits is None:
                if self._start is not start:  # That took so long that the next episode has begun.
                    return ""
                self._owners = {name: kit for kit in kits for name in kit.tools}
                self._offer(self._merged(kits))
                self._kits = kits
            for kit in kits:
                kit.start(self.problem, self.np_random)
        except _PERMANENT:
            raise
        except Exception as error:  # The agent has not acted yet: whatever failed, it was not the agent.
            place = foreign_line(error)
            fault = f"{self._where()}: a toolkit did not start: {type(error).__name__}: {error}"
            return f"{fault} ({place})" if place else fault
        return ""

    def abandon(self) -> None:
        """Let go of toolkits that a hung call may still use: they close on a thread of their own."""
        kits, self._kits = self._kits, None
        if kits:
            threading.Thread(target=close_all, args=(kits,), name="palaestra-close", daemon=True).start()

    @property
    def np_random(self) -> np.random.Generator:
        """The environment's only source of randomness, seeded by reset or by the episode's Start."""
        if self._np_random is None:
            self._np_random, self._np_random_seed = seeding.np_random(self._np_random_seed)
        return self._np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self._np_random, self._np_random_seed = value, -1

    # Inside.

    def _merged(self, kits: Sequence[Toolkit]) -> Mapping[str, Tool]:
        offered = [(type(kit).__name__, kit.tools) for kit in kits]
        return merge(type(self).__name__, self._tools, offered) if kits else self._tools

    def _offer(self, tools: Mapping[str, Tool]) -> None:
        """Offer these tools, without those that have to be found."""
        self._table, self._hidden = divide(type(self).__name__, tuple(tools.values()))
        self._schemas, self._described = described(tuple(self._table.values()))
        self._terminal = frozenset(name for name, one in tools.items() if one.terminal)
        if self._hidden:
            self._owners = {**self._owners, FIND: Finder(self._hidden, self.max_result_chars)}

    def _close_kits(self) -> None:
        if self._kits and self.closes_toolkits:
            close_in_time(self)

    def _where(self) -> str:
        return f"{self.spec.id if self.spec else type(self).__name__} slot {self.slot}"
