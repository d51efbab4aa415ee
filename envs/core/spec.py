"""Constants of one author's object (its tasks, seats, tools and limits), read once for all episodes.

All Machines that play the object share one Spec, so that a thousand idle slots hold the constants only once.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import Any

from palaestra import formats
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.declared import DEADLINES, check_values
from palaestra.envs.core.state import Dialogue, EpisodeState, Seat, episode_of
from palaestra.envs.core.tasks import check_task
from palaestra.envs.core.tool import Tool
from palaestra.envs.core.tool_names import ToolNames, settled
from palaestra.envs.core.toolkit import check_toolkits, merge
from palaestra.envs.running.work import Conditions, WorkMode
from palaestra.episode import Message, Start, Task
from palaestra.errors import EnvironmentDefect, UsageError


class Offer:
    """Tools that a seat may call, by name, with their schemas."""

    __slots__ = ("described", "schemas", "table")

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.table: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.schemas = tuple(tool.schema for tool in self.table.values())
        self.described = json.dumps(self.schemas, ensure_ascii=False)
        """The schemas as text: Gymnasium forbids dicts shared between infos."""

    def described_by(self, schemas: tuple[Mapping[str, Any], ...]) -> str:
        """Return the schemas of an event as text: those of this offer, or those that a harness offers."""
        return self.described if schemas is self.schemas else json.dumps(schemas, ensure_ascii=False)


def _waits(method: Any) -> bool:
    """Return whether a method, or an object in its place, is declared to wait: an `async def`, or `waits` is True."""
    return iscoroutinefunction(method) or bool(getattr(method, "waits", False))


_offer = lru_cache(maxsize=1024)(Offer)
"""Cache of offers, shared by all objects of a class."""


@lru_cache(maxsize=256)
def _conditions(deadlines: tuple[tuple[str, float], ...]) -> Mapping[tuple[str, WorkMode], Conditions]:
    return {(name, mode): Conditions(mode, seconds) for name, seconds in deadlines for mode in WorkMode}


class Spec:
    """Constants of one author's object. All Machines that play this object read them."""

    def __init__(self, author: ToolEnv, tasks: Callable[[ToolEnv], Sequence[Task]], name: str = "") -> None:
        """`tasks` returns the tasks; it is called when they are first needed. `name`, such as the id, is for errors."""
        check_values(author)  # A constructor may have set some values.
        self.author, self._load = author, tasks
        self.name = name or type(author).__name__
        self.owner = type(author).__name__
        self.seats: tuple[Seat, ...] = author.seats or (None,)
        self.solo = not author.seats
        check_toolkits(self.owner, author.toolkits)
        self.toolkits = settled(author.toolkits)
        """Factories of the toolkits, after tools of the same name were told apart."""
        self._names = ToolNames(self.owner, self.toolkits)
        systems = {seat: author.system if isinstance(author.system, str) else author.system.get(str(seat), "")
                   for seat in self.seats}  # fmt: skip
        self.system = {seat: self._names.write(text) for seat, text in systems.items()}
        tools = merge(self.owner, author._tools, self._names.tools())
        self.offers = {seat: _offer(tuple(self._tools_of(seat, tools))) for seat in self.seats}
        self.inline = all(tool.mode is WorkMode.INLINE for tool in tools.values())
        """True if no tool waits."""
        self.has_reward = type(author).reward is not ToolEnv.reward
        """True if the class has a `reward`; a game may have none."""
        self.reward_waits = self.has_reward and _waits(author.reward)
        self.has_user = type(author).user is not ToolEnv.user or "user" in vars(author)
        """True if a turn without a call is a message to a user; otherwise it is the answer."""
        self.user_waits = self.has_user and _waits(author.user)
        self.conditions = _conditions(tuple({**DEADLINES, **author.deadlines}.items()))
        self.own_final = type(author).final is not ToolEnv.final
        self.has_kits = bool(author.toolkits)
        # Read at each turn: an attribute here is twice as fast as one looked up in a class and its bases.
        self.max_turns, self.max_turn_calls = int(author.max_turns), int(author.max_turn_calls)
        self.max_result_chars, self.max_kept_chars = int(author.max_result_chars), int(author.max_kept_chars)
        self.parts = author.parts
        self.parse = formats.get(author.format).parse
        self._tasks: Sequence[Task] | None = None

    @property
    def tasks(self) -> Sequence[Task]:
        """Tasks of the split. Fixed data is loaded once for all machines."""
        if self._tasks is None:
            tasks = self._load(self.author)
            if not len(tasks):
                raise EnvironmentDefect(
                    f"{self.owner}.task_set({self.author.split!r}) is empty; expected at least one Task"
                )
            if isinstance(tasks, list | tuple):  # Give ids once, and not again in every episode.
                tasks = [self._checked(task, at) for at, task in enumerate(tasks)]
            self._tasks = tasks
        return self._tasks

    def task(self, index: int) -> Task:
        """Return the task with this index; raise UsageError if there is none."""
        tasks = self.tasks
        if not 0 <= index < len(tasks):
            raise UsageError(f"task {index} does not exist; {self.name} has tasks 0 to {len(tasks) - 1}")
        return self._checked(tasks[index], index)

    def start_of(self, starts: Mapping[Seat, Start]) -> Start:
        """Check that there is a start for each seat, and that all agree in task and seed; return one of them."""
        if self.solo and len(starts) == 1:
            start = starts.get(None)
            if start is None or start.seat is not None:
                raise UsageError(
                    f"{self.name} has one seat; expected Start(seat=None), found seat={next(iter(starts))!r}"
                )
            return start
        if set(starts) != set(self.seats) or len({(start.task, start.seed) for start in starts.values()}) != 1:
            seats = ", ".join(map(str, self.seats))
            raise UsageError(f"{self.name}: expected one start for each of {seats}, of the same task and seed")
        return next(iter(starts.values()))

    def new_state(self, starts: Mapping[Seat, Start], slots: Mapping[Seat, int], problem: Task) -> EpisodeState:
        """Return the state of an episode before its toolkits start."""
        seats: dict[Seat, Dialogue] = {}
        for seat in self.seats:
            start, system = starts[seat], self.system[seat]
            messages: list[Message] = [{"role": "system", "content": system}] if system else []
            if seat is None:
                messages.append({"role": "user", "content": problem.prompt})
                messages += start.prefix
            seats[seat] = Dialogue(start, slots.get(seat, 0), messages, self.offers[seat].schemas)
        return EpisodeState(self.name, problem, start.seed, episode_of(self.author, problem, start.seed), seats)

    def _checked(self, task: Task, index: int) -> Task:
        task = check_task(self.owner, task, f"{self.author.split}/{index}")
        prompt = self._names.write(task.prompt)
        return task if prompt == task.prompt else replace(task, prompt=prompt)

    def _tools_of(self, seat: Seat, tools: Mapping[str, Tool]) -> Iterable[Tool]:
        if self.solo:
            return tools.values()
        names = self.author.seat_tools.get(str(seat), ())
        if unknown := [name for name in names if name not in tools]:
            raise EnvironmentDefect(
                f"{self.owner}.seat_tools[{seat!r}] names {unknown[0]!r}; its tools are {', '.join(tools)}"
            )
        return [tools[name] for name in names]
