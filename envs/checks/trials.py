"""Episodes that the checks of `palaestra check` are made of: played by a demonstrator, a cheat or a fixed script.

One seat is a game of one: a check takes a Chair, which is a seat of a machine whose other seats are played by rule.
Left out: what the episodes must come to (`check`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np

from palaestra import formats
from palaestra.envs.arena.by_rule import ByRule, seat_rng
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.openers import open_playable
from palaestra.envs.arena.opening import open_machine
from palaestra.envs.checks.cheats import Cheat, arguments
from palaestra.envs.checks.findings import difference, require
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Seat
from palaestra.episode import Ending, Event, Message, Start, Task
from palaestra.errors import Broken, EnvironmentDefect, UnknownTask, UsageError
from palaestra.registry import arena, demonstrator, load_author, registered_author

EPISODES = 24
"""Episodes of each measurement: enough to see a cheat, short enough for a habit."""
FEWEST = 4
CHEAT_SECONDS = 3.0
"""What a cheat may take for more than the fewest episodes."""
MAX_STEPS = 2_000
"""Turns of all seats in one episode; one that goes on longer is taken for endless."""
Rule = Callable[..., str]

_HAND_ON = "an __init__ of its own hands on what it is given: def __init__(self, **kwargs): super().__init__(**kwargs)"


class Subject:
    """What is checked: an environment or game of ours, or somebody else's. Every check opens machines of its own."""

    def __init__(self, env_id: str, options: Mapping[str, Any] | None = None) -> None:
        self.env_id, self.options = env_id, dict(options or {})
        found = registered_author(env_id)
        self.entry_point = None if found is None else found[0]
        """Its class as "module:Class"; None where it is somebody else's."""
        self.demonstrator: Rule | None = None
        with suppress(UsageError):
            self.demonstrator = demonstrator(env_id)

    @cached_property
    def seats(self) -> Sequence[Seat]:
        """Who plays. An environment that cannot be played, or loaded, is refused here."""
        if self.entry_point is not None:
            return getattr(load_author(self.entry_point, f"{self.env_id}: its class"), "seats", ()) or (None,)
        with closing(open_playable(self.env_id, self.options)) as playable:
            return playable.seats

    @cached_property
    def form(self) -> str:
        if self.entry_point is None:
            return formats.DEFAULT
        with self.opened() as machine:
            return machine.spec.author.format

    @property
    def rule(self) -> Rule:
        """Its demonstrator; where it has none, or that does not know how to play, one who repeats what is asked."""
        known = self.demonstrator

        def play(messages: Sequence[Message], rng: np.random.Generator) -> str:
            if known is not None:
                with suppress(UnknownTask):
                    return known(messages, rng)
            return str(next(one["content"] for one in reversed(messages) if one["role"] == "user"))

        return play

    @contextmanager
    def opened(self, **more: Any) -> Iterator[Machine]:
        """A machine with an author's object of its own, which is released behind us."""
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

    def chairs(self) -> Iterator["Chair"]:
        """Each seat in turn, at a machine of its own."""
        for seat in self.seats:
            with self.opened() as machine:
                yield Chair(machine, seat, self.rule)


class Chair:
    """A seat that a check plays; the others are played by rule. It is what a cheat sees."""

    def __init__(self, machine: Machine, seat: Seat, rule: Rule) -> None:
        self.machine, self.spec, self.seat = machine, machine.spec, seat
        self._played: Machine | ByRule = machine if seat is None else ByRule(machine, seat, rule)
        self.messages: list[Message] = []
        """What was heard and said in this episode."""
        self.author = machine.spec.author
        self.format = self.author.format
        self.max_turns, self.max_turn_calls = self.spec.max_turns, self.spec.max_turn_calls
        self.of = "" if seat is None else f" of {seat}"
        """Behind what belongs to the seat."""

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """What the seat is told of its tools."""
        return self.spec.offers[self.seat].schemas

    @property
    def problem(self) -> Task:
        assert self.machine.state is not None
        return self.machine.state.problem

    def declared(self, name: str, default: Any) -> Any:
        """What the class declares of this seat: a value for all of them, or one by seat."""
        found = getattr(self.author, name)
        return found.get(self.seat, default) if isinstance(found, Mapping) else found

    def call(self, tool_name: str, /, **arguments: Any) -> str:
        return formats.get(self.format).render([formats.ParsedCall(tool_name, arguments)])

    def begin(self, task: int = 0, seed: int = 0, problem: Task | None = None) -> Event:
        """Open an episode, up to the seat's first turn; Broken where it cannot begin."""
        self.messages = []
        start = Start(task % self.machine.task_count, seed)
        event = self._heard(self._played.open({None: start}, problem))
        require_unbroken(event)
        return event

    def say(self, text: str) -> Event:
        self.messages.append({"role": "assistant", "content": text})
        return self._heard(self._played.act(None, text))

    def leave(self, ending: Ending = Ending.LENGTH_LIMIT, text: str = "") -> Event:
        """The seat cannot go on."""
        return self._heard(self._played.stop(ending, None, text))

    def play(self, player: Callable[[list[Message]], str | None], task: int, seed: int) -> Event:
        """A whole episode of a player, who gives the next turn, or None to walk away: how it ends."""
        event = self.begin(task, seed)
        for _ in range(MAX_STEPS):
            if event.ending is not None:
                require_unbroken(event)
                return event
            said = player(list(self.messages))
            event = self.leave() if said is None else self.say(said)
        raise _endless(task, seed)

    def play_by(self, rule: Rule, task: int, seed: int, answers: bool = True) -> Event:
        """The same of a rule, as it would play beside others, or walk away where it would answer.

        It writes calls as demonstrators do.
        """
        start = Start(task % self.machine.task_count, seed)

        def player(heard: list[Message]) -> str | None:
            said = rule(heard, seat_rng(self.seat, start, len(heard)))
            text = formats.translate(said, self.format, self.schemas)
            return text if answers or not formats.get(self.format).parse(text, self.schemas).is_answer else None

        return self.play(player, task, seed)

    def _heard(self, reply: Any) -> Event:
        event = settle(self._played, reply)[None]
        self.messages += event.messages
        return event


def require_unbroken(event: Event) -> None:
    """The infrastructure did not fail the episode."""
    if event.ending is Ending.BROKEN:
        raise Broken(event.fault)


def played(subject: Subject, count: int, rule: Rule, first: int = 0) -> dict[tuple[int, Seat], Event]:
    """How so many episodes end, all at once, by number and seat: a rule plays every seat."""
    places = [(number, seat) for number in range(first, first + count) for seat in subject.seats]
    opened = arena(subject.env_id, len(places), **subject.options)
    heard: list[list[Message]] = [[] for _ in places]
    ended: dict[tuple[int, Seat], Event] = {}
    try:
        for slot, (number, seat) in enumerate(places):
            opened.begin(slot, Start(number % opened.task_count, number, seat=seat))
        for _ in range(MAX_STEPS):
            said: dict[int, str] = {}
            for event in opened.recv(1):
                place, messages = places[event.slot], heard[event.slot]
                messages += event.messages
                if event.ending is None:
                    text = rule(list(messages), seat_rng(place[1], event.start, len(messages)))
                    said[event.slot] = formats.translate(text, subject.form, event.tools)
                    messages.append({"role": "assistant", "content": said[event.slot]})
                else:
                    require_unbroken(event)
                    ended[place] = event
            if len(ended) == len(places):
                return ended
            opened.send(said)
    finally:
        opened.close()
    raise _endless(first, first)


def _endless(task: int, seed: int) -> EnvironmentDefect:
    return EnvironmentDefect(f"task {task}, seed {seed}: the episode goes on after {MAX_STEPS} turns; it has to end")


def cheats_of(chair: Chair, cheat: Cheat) -> list[tuple[float, float]]:
    """Success and reward of episodes of a cheat: fewer where the tools that it calls are slow."""
    found: list[tuple[float, float]] = []
    until = time.monotonic() + CHEAT_SECONDS
    while len(found) < EPISODES and (len(found) < FEWEST or time.monotonic() < until):
        event = chair.play(lambda messages: cheat(chair, messages), len(found), len(found))
        found.append((event.parts["success"], event.reward or 0.0))
    return found


def successes(chair: Chair, rule: Rule, episodes: int = EPISODES) -> Iterator[float]:
    """The success of episodes with different tasks, of those that the rule knows how to play."""
    for number in range(episodes):
        with suppress(UnknownTask):
            yield chair.play_by(rule, number, number).parts["success"]


def scripted(chair: Chair, rule: Rule, task: int, seed: int) -> dict[str, Any]:
    """What a fixed script meets: play by rule, then a call of each tool, a turn of bad calls, and an answer."""
    kept = deepcopy(chair.spec.task(task % chair.machine.task_count))
    event = chair.play_by(rule, task, seed)
    require_untouched(kept, chair.problem)
    met: dict[str, Any] = {"the play by rule": _seen(event), "attempt": event.attempt}
    event = chair.begin(task, seed)
    met["the opening"] = event.messages
    names = [(schema["function"]["name"], arguments(schema)) for schema in chair.schemas]
    script = {name: chair.call(name, **given) for name, given in names}
    script |= {"the turn of bad calls": chair.call("nobody") + "<tool_call>{</tool_call>", "the answer": kept.prompt}
    for name, said in script.items():
        if event.ending is not None or sum(one["role"] == "assistant" for one in chair.messages) >= chair.max_turns - 1:
            event = chair.begin(task, seed)
        if event.ending is None:
            event = chair.say(said)
            met[name] = _seen(event)
            require_untouched(kept, chair.problem)
    return met


def _seen(event: Event) -> dict[str, Any]:
    final = None if event.attempt is None else event.attempt.final
    return {"messages": event.messages, "parts": dict(event.parts), "ending": event.ending, "final": final}


def require_untouched(kept: Task, task: Task) -> None:
    """A task is what it was before it was played: later episodes and records hold it too."""
    found = difference(kept.data, task.data, "Task.data") or difference(kept.answer, task.answer, "Task.answer")
    require(not found, f"a task is changed as it is played, for later episodes and records too; copy it first: {found}")
