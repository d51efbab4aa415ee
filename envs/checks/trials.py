"""Episodes for the checks of `palaestra check`, played by a demonstrator, a cheat or a fixed script.

A check plays a Chair: one seat of a machine whose other seats are played by rule. An environment with one seat is taken
as a game of one. Left out: the expected results of the episodes (`check`).
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np

from palaestra import formats
from palaestra.envs.arena.by_rule import ByRule, seat_rng
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.openers import open_playable
from palaestra.envs.arena.opening import open_machine, require_no_game
from palaestra.envs.checks.cheats import Cheat, arguments
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Seat
from palaestra.episode import Ending, Event, Message, Start, Task
from palaestra.errors import Broken, EnvironmentDefect, MissingExtra, UnknownTask, UsageError
from palaestra.registry import demonstrator, load_author, registered_author

EPISODES = 24
"""Episodes of each measurement: enough to detect a cheat, few enough to check often."""
MIN_EPISODES = 4
CHEAT_SECONDS = 3.0
"""Seconds after which a cheat plays no more than MIN_EPISODES episodes."""
MANY_TURNS = 100_000
"""Turns of an episode that takes all calls of a check."""
MAX_STEPS = 2_000
"""Turns of all seats in one episode; a longer episode counts as endless."""
TrialRule = Callable[..., str]

_HAND_ON = "an __init__ of its own hands on what it is given: def __init__(self, **kwargs): super().__init__(**kwargs)"


class Subject:
    """An environment or game that is checked, ours or a foreign one. Every check opens machines of its own."""

    def __init__(self, env_id: str, options: Mapping[str, Any] | None = None) -> None:
        self.env_id, self.options = env_id, dict(options or {})
        author_entry = registered_author(env_id)
        self.entry_point = None if author_entry is None else author_entry[0]
        """Class of the environment as "module:Class"; None for a foreign one."""
        self.slow = False
        """True if an episode takes so long (a server starts for it) that the checks play fewer."""
        self.alone: dict[tuple[int, Seat], Event] = {}
        self.together: Mapping[tuple[int, Seat], Event] = {}
        self.unanswered: list[Event] = []
        self.left_alone: dict[Seat, Event] = {}
        """Last events of a slow environment's episodes that several checks read (`at_once`)."""
        self.demonstrator: TrialRule | None = None
        with suppress(UsageError):
            self.demonstrator = _reported(demonstrator(env_id))

    @property
    def constructor_options(self) -> dict[str, Any]:
        """Return the options; without `success_at` for a foreign environment, whose constructor does not take it."""
        return {name: value for name, value in self.options.items() if self.entry_point or name != "success_at"}

    @cached_property
    def seats(self) -> Sequence[Seat]:
        """Return the seats. Raise an error for an environment that cannot be loaded or played."""
        if self.entry_point is not None:
            author_class = load_author(self.entry_point, f"{self.env_id}: its class")
            if not (seats := getattr(author_class, "seats", ())):
                require_no_game(self.env_id, author_class)
            return seats or (None,)
        with closing(open_playable(self.env_id, self.options)) as playable:
            return playable.seats

    @cached_property
    def form(self) -> str:
        if self.entry_point is None:
            return formats.DEFAULT
        with self.opened() as machine:
            return machine.spec.author.format

    @property
    def rule(self) -> TrialRule:
        """Return a rule that plays as the demonstrator. If there is none, or it does not know the task, the rule
        repeats the last user message; in a slow environment, where there is none, it calls every tool first."""
        demonstrate = self.demonstrator
        calls = self._every_tool if self.slow and demonstrate is None else ""

        def play(messages: Sequence[Message], rng: np.random.Generator) -> str:
            if demonstrate is not None:
                with suppress(UnknownTask):
                    return demonstrate(messages, rng)
            if calls and all(message["role"] != "assistant" for message in messages):
                return calls
            return str(next(message["content"] for message in reversed(messages) if message["role"] == "user"))

        return play

    @cached_property
    def _every_tool(self) -> str:
        """Return calls of every tool of the one seat, in the format of demonstrators; "" if it has one turn."""
        with self.opened() as machine:
            spec = machine.spec
            schemas = spec.offers[None].schemas[: spec.max_turn_calls] if spec.solo and spec.max_turns > 1 else ()
            calls = [formats.ParsedCall(schema["function"]["name"], arguments(schema)) for schema in schemas]
        return formats.get(formats.DEFAULT).render(calls) if calls else ""

    @contextmanager
    def opened(self, **more: Any) -> Iterator[Machine]:
        """Open a machine with a new object of the author's class, and release it at the end of the block."""
        try:
            machine = open_machine(self.env_id, {**self.options, **more})
        except UsageError as error:
            if not any(f"takes no option {name!r}" in str(error) for name in more):
                raise
            raise EnvironmentDefect(f"{str(error).partition(';')[0]}; {_HAND_ON}") from None
        author = machine.spec.author
        if "split" in more and author.split != more["split"]:
            kind = type(author).__name__
            raise EnvironmentDefect(f"{kind}(split={more['split']!r}) has the split {author.split!r}; {_HAND_ON}")
        try:
            yield machine
        finally:
            release(machine)

    def chairs(self) -> Generator["Chair", None, None]:
        """Yield a Chair for each seat in turn, each with a machine of its own."""
        for seat in self.seats:
            with self.opened() as machine:
                yield Chair(machine, seat, self.rule)


def _reported(rule: TrialRule) -> TrialRule:
    """Return a demonstrator whose exceptions say that they are its own, and what it saw."""

    def play(messages: Sequence[Message], rng: np.random.Generator) -> str:
        texts = {str(message["role"]): str(message["content"]) for message in reversed(messages)}
        task, last = texts.get("user", "")[:100], str(messages[-1]["content"])[:300]
        where = f"in the task {task!r}, after the message {last!r}"
        try:
            turn: object = rule(messages, rng)
        except (UnknownTask, MissingExtra):
            raise
        except Exception as error:  # The author's code may raise anything.
            raise EnvironmentDefect(f"its demonstrator raised {type(error).__name__}: {error}, {where}") from error
        if not isinstance(turn, str):
            raise EnvironmentDefect(
                f"its demonstrator returned {turn!r}, {where}; return the agent's whole turn, a text"
            )
        return turn

    return play


class Chair:
    """A seat that a check or a cheat plays; the other seats are played by rule."""

    def __init__(self, machine: Machine, seat: Seat, rule: TrialRule) -> None:
        self.machine, self.spec, self.seat = machine, machine.spec, seat
        self._playable: Machine | ByRule = machine if seat is None else ByRule(machine, seat, rule)
        self.messages: list[Message] = []
        """Messages of this episode, from and to the seat; where it has several dialogues, of the one that goes on."""
        self._dialogue, self._others = 0, dict[int, list[Message]]()
        """Number of the dialogue that goes on, and the messages of the others."""
        self.author = machine.spec.author
        self.format = self.author.format
        self.max_turns, self.max_turn_calls = self.spec.max_turns, self.spec.max_turn_calls
        self.of = "" if seat is None else f" of {seat}"
        """Suffix of messages about the seat; "" where there is one seat."""

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """Return the schemas of the seat's tools."""
        return self.spec.offers[self.seat].schemas

    @property
    def problem(self) -> Task:
        assert self.machine.state is not None
        return self.machine.state.problem

    def declared(self, name: str, default: Any) -> Any:
        """Return the value that the class declares for this seat; the class may declare one value for all seats."""
        value = getattr(self.author, name)
        return value.get(self.seat, default) if isinstance(value, Mapping) else value

    def call(self, tool_name: str, /, **arguments: Any) -> str:
        return formats.get(self.format).render([formats.ParsedCall(tool_name, arguments)])

    def begin(self, task: int = 0, seed: int = 0, problem: Task | None = None) -> Event:
        """Open an episode and return the seat's first event; raise Broken if the episode cannot begin."""
        self.messages, self._dialogue, self._others = [], 0, {}
        start = Start(task % self.machine.task_count, seed)
        event = self._receive(self._playable.open({None: start}, problem))
        require_unbroken(event)
        return event

    def let_last(self, lasts: bool) -> None:
        """Let an episode take the turns of a whole check, or, if not `lasts`, as many as the author says."""
        self.spec.max_turns = self.max_turns = MANY_TURNS if lasts else int(self.author.max_turns)

    def ready(self, slow: bool, task: int = 0, seed: int = 0) -> bool:
        """Begin an episode and return whether it is the seat's turn. If episodes are `slow`, an open one goes on while
        its toolkits take calls."""
        kits: list[Any] = [kit for _, kit in self.machine.kits.instances or () if getattr(kit, "max_calls", None)]
        if slow and self.machine.is_open and all(kit.usage.calls < kit.max_calls for kit in kits):
            return True
        return self.begin(task, seed).ending is None

    def say(self, text: str) -> Event:
        self.messages.append({"role": "assistant", "content": text})
        return self._receive(self._playable.act(None, text))

    def leave(self, ending: Ending = Ending.LENGTH_LIMIT, text: str = "") -> Event:
        """Stop the seat from outside; `text` is its unfinished turn."""
        return self._receive(self._playable.stop(ending, None, text))

    def play(self, player: Callable[[list[Message]], str | None], task: int, seed: int) -> Event:
        """Play a whole episode and return its end. `player` returns the next turn, or None to stop."""
        event = self.begin(task, seed)
        for _ in range(MAX_STEPS):
            if event.ending is not None:
                require_unbroken(event)
                return event
            response = player(list(self.messages))
            event = self.leave() if response is None else self.say(response)
        raise endless(task, seed)

    def play_by(self, rule: TrialRule, task: int, seed: int, answers: bool = True) -> Event:
        """Play a whole episode by a rule and return its end. Without `answers`, the seat is stopped in place of its
        answer.

        The rule writes calls in the demonstrators' format; its random numbers are the same as in an arena.
        """
        start = Start(task % self.machine.task_count, seed)

        def player(messages: list[Message]) -> str | None:
            response = rule(messages, seat_rng(self.seat, start, len(messages)))
            text = formats.translate(response, self.format, self.schemas)
            return text if answers or not formats.get(self.format).parse(text, self.schemas).is_answer else None

        return self.play(player, task, seed)

    def cheated(self, cheat: Cheat, slow: bool = False) -> list[tuple[float, float]]:
        """Return success and reward of each of a cheat's episodes. If they take long, there are fewer, but MIN_EPISODES
        at least; if they are known to be `slow`, the first one without success is the last."""
        results: list[tuple[float, float]] = []
        until = time.monotonic() + CHEAT_SECONDS
        while len(results) < EPISODES and (len(results) < MIN_EPISODES or time.monotonic() < until):
            event = self.play(lambda messages: cheat(self, messages), len(results), len(results))
            results.append((event.parts["success"], event.reward or 0.0))
            if slow and not results[-1][0]:
                break
        return results

    def _receive(self, reply: Any) -> Event:
        event = settle(self._playable, reply)[None]
        if event.ending is None and event.dialogue != self._dialogue:
            self._others[self._dialogue] = self.messages
            self._dialogue, self.messages = event.dialogue, self._others.pop(event.dialogue, [])
        self.messages += event.messages
        return event


def require_unbroken(event: Event) -> None:
    """Raise Broken if the episode ended BROKEN, by a failure of the infrastructure."""
    if event.ending is Ending.BROKEN:
        raise Broken(event.fault)


def endless(task: int, seed: int) -> EnvironmentDefect:
    return EnvironmentDefect(f"task {task}, seed {seed}: the episode goes on after {MAX_STEPS} turns; it has to end")
