"""Game: the base of conversational games of several seats with tools. An author writes the rounds as a generator.

    def rounds(self, task, rng):
        said = yield {"solver_0": task.prompt}                    ask one seat, or several at once
        ...                                                       said["solver_0"] is its answer, None without one
        return {"solver_0": 1.0, "critic_0": {"success": 0.0}}    every seat's reward

A turn with calls runs the seat's tools and the seat goes on; a turn without a call is what it says. Everything a seat
writes is legal. Left out: PettingZoo's faces (`seats`), toolkits, and how a game is branched (`game_branches`).
"""

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from palaestra import formats
from palaestra.envs.core.calls import Prepared, clip, prepare, refused, run
from palaestra.envs.core.scoring import RewardPart, check_declared, score
from palaestra.envs.core.settings import GAME_LIMITS, check_by_seat, check_limits
from palaestra.envs.core.tasks import ProceduralTasks, check_split, check_task
from palaestra.envs.core.tool import Mode, Tool, collect
from palaestra.envs.games import game_branches
from palaestra.envs.games.game_branches import GameSnapshot
from palaestra.envs.games.match import Events, Record, Seat, blame, broken
from palaestra.envs.running.runner import take_turn
from palaestra.episode import Call, Ending, Event, Start, Status, Task
from palaestra.errors import Broken, EnvironmentDefect, UsageError

Asks = Mapping[str, str]
Replies = Mapping[str, str | None]
Rewards = Mapping[str, float | Mapping[str, float]]
Rounds = Generator[Asks, Replies, Rewards]


class Game:
    """A game of several seats. Define `seats`, `task`, `rounds`, and tools as methods marked `@tool`."""

    seats: tuple[str, ...] = ()
    """Who plays, named as PettingZoo likes it: solver_0, critic_0."""
    system: Mapping[str, str] = {}
    """What each seat is told before anything else."""
    seat_tools: Mapping[str, Sequence[str]] = {}
    """Which seat may call which tools; a seat that is not named has none."""
    parts: Mapping[str, RewardPart] = {"success": RewardPart()}
    max_turns: int = 4
    """Turns of a seat in a row: calls that it may make before it must have said something."""
    max_turn_calls: int = 16
    max_result_chars: int = 4096
    format: str = formats.DEFAULT
    """In which dialect calls are read. A class that names one has chosen; otherwise whoever opens it may."""
    chance: Mapping[str, float] = {}
    """Success that guessing has in a seat, for `check`; 0 for a seat that is not named."""
    ceiling: Mapping[str, float] = {}
    """The most reward that a seat without success may get, for `check`, where `parts` do not say enough."""

    _tools: ClassVar[dict[str, Tool]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._tools = collect(cls)
        check_declared(cls.__name__, cls.parts)
        check_limits(cls, GAME_LIMITS)
        check_by_seat(cls)
        formats.get(cls.format)
        for found in cls._tools.values():
            if found.terminal or found.hidden:
                raise EnvironmentDefect(
                    f"{cls.__name__}.{found.attribute} is a terminal or hidden tool; in a game the rounds decide "
                    "when it ends, and seat_tools names the tools of a seat"
                )
        if len(cls.seats) < 2 or len(set(cls.seats)) < len(cls.seats):
            raise EnvironmentDefect(f"{cls.__name__}.seats is {cls.seats!r}; expected at least two different names")
        for named in (cls.system, cls.seat_tools, cls.chance, cls.ceiling):
            if unknown := [seat for seat in named if seat not in cls.seats]:
                raise EnvironmentDefect(f"{cls.__name__} speaks of a seat {unknown[0]!r}; its seats are {cls.seats}")
        for seat, names in cls.seat_tools.items():
            if unknown := [name for name in names if name not in cls._tools]:
                raise EnvironmentDefect(
                    f"{cls.__name__}.seat_tools[{seat!r}] names {unknown[0]!r}; its tools are {', '.join(cls._tools)}"
                )

    def __init__(self, split: str = "train", format: str | None = None) -> None:
        """`format` is the dialect in which calls are read, in place of the class's."""
        check_split(split)
        if format is not None:
            self.format = formats.known(format)
        self.split = split
        self.problem: Task | None = None
        """The current task, for tools to read."""
        self._set: Sequence[Task] | None = None
        self._clear()
        self.outcomes: Mapping[str, Callable[[Prepared], Call]] = {}
        """Seats whose tools are not run: what came of their calls is known, for a game that is played again."""

    def _clear(self) -> None:
        """No game is played."""
        self._rounds: Rounds | None = None
        self._random = np.random.default_rng(0)
        self._records: dict[Seat, Record] = {}
        self._asked: dict[str, int] = {}
        """Seats that have not answered yet, and the turns each has left."""
        self._replies: dict[str, str | None] = {}
        self._said: list[tuple[str, str]] = []
        self._noise: list[tuple[int, int]] = []

    # What an author writes.

    def task(self, rng: np.random.Generator) -> Task:
        """Draw a problem. All its randomness comes from `rng`."""
        raise EnvironmentDefect(f"{type(self).__name__} has no problems: write task(self, rng) or task_set(split)")

    def task_set(self, split: str) -> Sequence[Task]:
        """The problems of a split; override it for fixed data."""
        return ProceduralTasks(self.task, type(self).__qualname__, split)

    def rounds(self, task: Task, rng: np.random.Generator) -> Rounds:
        """The course of the game; see the head of this module. `rng` is the game's own randomness, from the seed."""
        raise EnvironmentDefect(f"{type(self).__name__} has no course: write the generator rounds(self, task, rng)")

    def forfeit(self, culprit: str) -> Rewards:
        """What each seat gets where `culprit` could not go on; a seat that is not named gets 0 in every part."""
        return {}

    # What drives it: the arena, and PettingZoo's faces.

    @property
    def tasks(self) -> Sequence[Task]:
        """The task set of this game's split."""
        if self._set is None:
            self._set = self.task_set(self.split)
            if not len(self._set):
                raise EnvironmentDefect(f"{type(self).__name__}.task_set({self.split!r}) is empty; expected a Task")
        return self._set

    def use_tasks(self, tasks: Sequence[Task]) -> None:
        """Play these in place of the split's own."""
        self._set = tasks

    @property
    def task_count(self) -> int:
        """How many tasks a Start may index."""
        return len(self.tasks)

    @property
    def inline(self) -> bool:
        """True when every tool only computes."""
        return all(tool.mode is Mode.INLINE for tool in self._tools.values())

    @property
    def is_open(self) -> bool:
        """True while a game runs."""
        return self._rounds is not None

    @property
    def asked(self) -> Events:
        """Who is asked now, each with all that is new since its last turn."""
        return {
            seat: Event(-1, self._records[seat].start, self._records[seat].unanswered(), self.schemas(seat))
            for seat in self._asked
        }

    @property
    def records(self) -> Mapping[Seat, Record]:
        """What each seat has heard, said and called in the game that is played."""
        return self._records

    def open(self, starts: Mapping[Seat, Start]) -> Events:
        """Begin a game. The task index decides the problem, the seed only the game's own randomness."""
        if set(starts) != set(self.seats) or len({(start.task, start.seed) for start in starts.values()}) != 1:
            raise UsageError(f"{type(self).__name__}: expected one start a seat, of the same task and seed")
        start = next(iter(starts.values()))
        if not 0 <= start.task < len(self.tasks):
            raise UsageError(f"task {start.task} does not exist; there are tasks 0 to {len(self.tasks) - 1}")
        problem = check_task(type(self).__name__, self.tasks[start.task], f"{self.split}/{start.task}")
        self.close()
        self.problem = problem
        self._records = {seat: Record(starts[seat], problem, self.system.get(seat, "")) for seat in self.seats}
        self._said, self._noise = [], []
        self._random = np.random.default_rng([start.seed, start.task])
        rounds: object = self.rounds(problem, self._random)
        if not isinstance(rounds, Generator):
            if isinstance(rounds, Coroutine):
                rounds.close()  # Nobody is going to await it, and Python would warn of that as well.
            raise EnvironmentDefect(
                f"{type(self).__name__}.rounds gave {type(rounds).__name__} and no generator; write it as a plain "
                "method (no async) that yields {seat: text} for each turn and returns every seat's reward at its end"
            )
        self._rounds = rounds
        return self._ask(lambda rounds: next(rounds))

    def act(self, texts: Mapping[Seat, str]) -> Events:
        """Take turns of seats that were asked; those that called tools speak again."""
        again: Events = {}
        for seat, text in texts.items():
            if seat is None or self._rounds is None or seat not in self._asked:
                raise UsageError(f"{type(self).__name__}: it is not the turn of {seat!r}")
            reply, breakage = self._turn(seat, text)
            if breakage:
                return self.stop(Ending.BROKEN, fault=breakage)
            if reply is None and self._asked[seat]:
                again[seat] = self._event(seat)
            else:
                del self._asked[seat]
                self._replies[seat] = self._records[seat].answer = reply
        if self._asked:
            return again
        replies, self._replies = self._replies, {}
        return self._ask(lambda rounds: rounds.send(replies))

    def stop(self, ending: Ending, culprit: Seat = None, text: str = "", fault: str = "") -> Events:
        """End the game from outside; what the culprit had begun to say is recorded, never taken for an answer."""
        self.close()
        if culprit is not None and text:
            self._records[culprit].say(text)
        if ending is Ending.BROKEN:
            return broken(self._records, fault)
        if culprit is not None:
            self._records[culprit].answer = None
        rewards = self.forfeit(culprit) if culprit is not None else {}
        return {
            seat: self._closing(seat, *blame(seat, culprit, ending, fault), rewards.get(str(seat), {"success": 0.0}))
            for seat in self._records
        }

    def snapshot(self) -> GameSnapshot:
        """The running game as it stands, between two turns."""
        return game_branches.take(self)

    def restore(self, snapshot: GameSnapshot) -> Events:
        """Stand where the snapshot was taken, by playing its turns again; returns who is asked."""
        return game_branches.put(self, snapshot)

    def fork(self, count: int, *, own_noise: bool = True) -> list[Self]:
        """So many games that stand where this one stands, each with randomness of its own to come, or all with its."""
        return game_branches.fork(self, count, own_noise)

    def close(self) -> None:
        """Drop a running game."""
        if self._rounds is not None:
            self._rounds.close()
        self._rounds, self._asked, self._replies = None, {}, {}

    # Inside.

    def _ask(self, go_on: Callable[[Rounds], Asks]) -> Events:
        """Run the rounds to the next question, or to the end."""
        assert self._rounds is not None
        try:
            asks: Any = go_on(self._rounds)
        except StopIteration as end:
            self._rounds = None
            return self._over(end.value)
        except Broken as error:  # A judge's server that is gone, say.
            return self.stop(Ending.BROKEN, fault=str(error))
        if not isinstance(asks, Mapping) or not asks or any(seat not in self.seats for seat in asks):
            raise EnvironmentDefect(f"{type(self).__name__}.rounds yielded {asks!r}; expected {{seat: text}}")
        for seat, text in asks.items():
            if not isinstance(text, str) or not text:
                raise EnvironmentDefect(f"{type(self).__name__}.rounds asks {seat} {text!r}; expected some text")
            self._records[seat].hear(text)
        self._asked = {seat: max(1, self.max_turns) for seat in asks}
        return {seat: self._event(seat) for seat in asks}

    def _turn(self, seat: str, text: str) -> tuple[str | None, str]:
        """One turn of a seat: what it says, or None after calls; and what broke."""
        if not isinstance(text, str):
            raise UsageError(f"an action is {type(text).__name__}; expected str, the seat's whole turn")
        record = self._records[seat]
        parsed = formats.get(self.format).parse(text, self.schemas(seat))
        record.say(text)
        self._said.append((seat, text))
        self._asked[seat] -= 1
        if parsed.is_answer:
            return parsed.content, ""
        table = self._table(seat)
        prepared = [prepare(item, table, {}, self) for item in parsed.calls[: self.max_turn_calls]]
        if len(parsed.calls) > self.max_turn_calls:
            prepared.append(refused("", {}, f"only {self.max_turn_calls} calls are run in a turn; the rest were not"))
        calls, breakage = self._run(seat, prepared)
        for call in calls:
            record.hear(clip(call.text, self.max_result_chars), "tool", name=call.name)
        record.calls += calls
        return None, breakage or next((call.text for call in calls if call.status is Status.BROKEN), "")

    def _run(self, seat: str, prepared: list[Prepared]) -> tuple[list[Call], str]:
        """The calls of one turn, at once, with the tools' deadlines; or what came of them when they were recorded."""
        if seat in self.outcomes:
            return [self.outcomes[seat](item) for item in prepared], ""
        if all(item.mode is Mode.INLINE for item in prepared):
            return [run(item) for item in prepared], ""
        calls, late = take_turn(type(self).__name__, 0, prepared)
        return calls, "" if late is None else f"{late.name} gave no result in time"

    def _over(self, rewards: Any) -> Events:
        """The game has run its course."""
        if not isinstance(rewards, Mapping) or set(rewards) != set(self.seats):
            raise EnvironmentDefect(
                f"{type(self).__name__}.rounds returned {rewards!r}; expected the reward of each of {self.seats}"
            )
        return {
            seat: self._closing(
                seat,
                Ending.TURN_LIMIT if record.turns and record.answer is None else Ending.ANSWERED,
                "",
                rewards[str(seat)],
            )
            for seat, record in self._records.items()
        }

    def _closing(self, seat: Seat, ending: Ending, fault: str, returned: Any) -> Event:
        record = self._records[seat]
        reward, parts = score(type(self).__name__, self.parts, returned)
        schemas = self.schemas(str(seat))
        return Event(-1, record.start, record.news(), schemas, ending, reward, parts, record.attempt(), fault)

    def _event(self, seat: str) -> Event:
        record = self._records[seat]
        return Event(-1, record.start, record.news(), self.schemas(seat))

    def _table(self, seat: str) -> Mapping[str, Tool]:
        return {name: self._tools[name] for name in self.seat_tools.get(seat, ())}

    def schemas(self, seat: str) -> tuple[Mapping[str, Any], ...]:
        """What a seat is told of its tools."""
        return tuple(tool.schema for tool in self._table(seat).values())
