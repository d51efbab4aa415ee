"""Episodes that are played at once in an arena, and what spares a slow environment most of its episodes.

Where an episode takes long (a server starts for it), checks share the episodes that several of them need, and answers
are judged without episodes of their own: a reward sees the attempt alone, so an unanswered attempt with that answer in
it is enough; with a user it is not. Left out: episodes that a check plays one after another (`trials`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from palaestra import formats
from palaestra.envs.arena.by_rule import seat_rng
from palaestra.envs.checks.cheats import Cheat
from palaestra.envs.checks.trials import (
    EPISODES,
    MAX_STEPS,
    MIN_EPISODES,
    Chair,
    Subject,
    TrialRule,
    endless,
    require_unbroken,
)
from palaestra.envs.core.state import Seat, episode_of
from palaestra.envs.harness import Harness
from palaestra.envs.records.rescore import judge
from palaestra.episode import Ending, Event, Message, Start
from palaestra.errors import EnvironmentDefect, PalaestraError, UnknownTask
from palaestra.registry import arena

SLOW_SECONDS = 0.5
"""Seconds of an episode with at most one turn, of calls, from which on the checks play fewer episodes."""
AT_ONCE = 9
"""Episodes of a slow environment that begin at once: their servers share the processors."""
Player = Callable[[Event, list[Message]], str | None]
"""Function of the seat's last event and its messages that returns its next turn, or None to stop the episode."""

EndT = TypeVar("EndT")


def play_at_once(subject: Subject, plans: Sequence[tuple[int, Player]]) -> list[dict[Seat, Event]]:
    """Play an episode for each (number, player), all at once, with the player in every seat; return the last events.

    The number is the task and the seed.
    """
    places = [(index, seat) for index in range(len(plans)) for seat in subject.seats]
    opened = arena(subject.env_id, len(places), **subject.options)
    messages_by_place: list[dict[int, list[Message]]] = [{} for _ in places]
    """Messages by the number of their dialogue, for each place."""
    ended: list[dict[Seat, Event]] = [{} for _ in plans]
    try:
        for slot, (index, seat) in enumerate(places):
            number = plans[index][0]
            opened.begin(slot, Start(number % opened.task_count, number, seat=seat))
        for _ in range(MAX_STEPS):
            responses: dict[int, str] = {}
            for event in opened.recv(1):
                index, seat = places[event.slot]
                messages = messages_by_place[event.slot].setdefault(event.dialogue, [])
                messages += event.messages
                if event.ending is not None:
                    require_unbroken(event)
                    ended[index][seat] = event
                elif (response := plans[index][1](event, list(messages))) is None:
                    opened.finish(event.slot, Ending.LENGTH_LIMIT)
                else:
                    responses[event.slot] = response
                    messages.append({"role": "assistant", "content": response})
            if sum(map(len, ended)) == len(places):
                return ended
            opened.send(responses)
    finally:
        opened.close()
    raise endless(plans[0][0], plans[0][0])


def play_together(subject: Subject, count: int, rule: TrialRule, first: int = 0) -> dict[tuple[int, Seat], Event]:
    """Play `count` episodes at once, with the rule in every seat; return the last events by (number, seat)."""
    events = play_at_once(subject, [(number, _by_rule(subject, rule)) for number in range(first, first + count)])
    return {(number, seat): event for number, ends in enumerate(events, first) for seat, event in ends.items()}


def _by_rule(subject: Subject, rule: TrialRule) -> Callable[[Event, list[Message]], str]:
    def player(event: Event, messages: list[Message]) -> str:
        text = rule(messages, seat_rng(event.start.seat, event.start, len(messages)))
        return formats.translate(text, subject.form, event.tools)

    return player


def together(subject: Subject) -> Mapping[tuple[int, Seat], Event]:
    """Return the last events of MIN_EPISODES episodes by rule that were played at once, by (number, seat)."""
    if not subject.slow:
        return play_together(subject, MIN_EPISODES, subject.rule)
    if not subject.together:
        subject.together = play_together(subject, MIN_EPISODES, subject.rule)
    return subject.together


def alone(subject: Subject, chair: Chair, number: int = 0) -> Event:
    """Return the last event of an episode by rule that was played alone."""
    if not subject.slow:
        return chair.play_by(subject.rule, number, number)
    if (number, chair.seat) not in subject.alone:
        subject.alone[number, chair.seat] = chair.play_by(subject.rule, number, number)
    return subject.alone[number, chair.seat]


def demonstrated(subject: Subject, chair: Chair, rule: TrialRule, episodes: int = EPISODES) -> Iterator[Event]:
    """Yield the ends of episodes with different tasks; tasks that the demonstrator does not know are left out.

    In a slow environment the first MIN_EPISODES are all, if they are all won or all lost.
    """
    if not is_spared(subject, chair):
        for number in range(episodes):
            with suppress(UnknownTask):
                yield chair.play_by(rule, number, number)
        return
    first, count, won = 0, 0, 0
    while first < episodes and (not first or 0 < won < count):
        more = min(AT_ONCE, episodes - first)
        events = play_together(subject, more, subject.rule, first) if first else together(subject)
        first += len(events)
        for (number, _), event in events.items():
            assert event.attempt is not None
            opening = [*takewhile(lambda message: message["role"] != "assistant", event.attempt.messages)]
            with suppress(UnknownTask):
                rule(opening, seat_rng(None, Start(number, number), len(opening)))
                count, won = count + 1, won + (event.parts["success"] == 1.0)
                yield event


def unanswered(subject: Subject, chair: Chair) -> list[Event]:
    """Return the ends of episodes of a slow environment without an answer: of its first tasks, without a turn; of one
    whose every call fails; and of one by rule that stops before its answer. Those of `together` play beside them."""
    if not subject.unanswered:
        by_rule, parse = _by_rule(subject, subject.rule), chair.spec.parse

        def works(event: Event, messages: list[Message]) -> str | None:
            text = by_rule(event, messages)
            return None if parse(text, event.tools).is_answer else text

        idle: Player = lambda event, messages: None  # noqa: E731
        plans = [
            *((number, idle) for number in range(1, MIN_EPISODES)),
            (0, lambda *_: chair.call("nobody")),
            (0, works),
        ]
        first = without_an_answer(lambda: left_alone(subject, chair))
        try:
            ends = play_at_once(subject, [*plans, *((number, by_rule) for number in range(MIN_EPISODES))])
            subject.together = {(number, None): end[None] for number, end in enumerate(ends[len(plans) :])}
        except Exception:  # Was it one of these? Those of `together` are another check's.
            ends = without_an_answer(lambda: play_at_once(subject, plans))
        subject.unanswered = [first, *(end[None] for end in ends[: len(plans)])]
    return subject.unanswered


def left_alone(subject: Subject, chair: Chair) -> Event:
    """Return the last event of an episode without a turn; a slow environment plays it once.

    An episode that takes so long for a toolkit's start shows that the environment is slow.
    """
    event = subject.left_alone.get(chair.seat)
    if event is None or not subject.slow:
        began = time.monotonic()
        try:
            event = chair.begin()
            event = subject.left_alone[chair.seat] = chair.leave() if event.ending is None else event
        finally:
            subject.slow |= not chair.spec.inline and time.monotonic() - began > SLOW_SECONDS
    return event


def without_an_answer(plays: Callable[[], EndT]) -> EndT:
    """Play episodes without an answer; name what an author's reward raises for them."""
    try:
        return plays()
    except (PalaestraError, AssertionError):
        raise
    except Exception as error:  # The author's code may raise anything.
        raise EnvironmentDefect(
            f"reward raised {type(error).__name__} ({error}) for an episode without an answer; "
            "attempt.answer is None there"
        ) from error


def answer(subject: Subject, chair: Chair, text: str, number: int = 0) -> Event:
    """Return the event after the agent's first turn `text` in a task."""
    event = judge_answer(subject, chair, text, number)
    if event is None:
        chair.begin(number)
        event = chair.say(text)
    return event


def judge_answer(subject: Subject, chair: Chair, text: str, number: int = 0) -> Event | None:
    """Return the end of an episode of a slow environment that `text` answers; None if it has to be played."""
    parsed = chair.spec.parse(text, chair.schemas)
    if not is_spared(subject, chair) or chair.spec.has_user or parsed.calls:
        return None
    ended = unanswered(subject, chair)[number]
    assert ended.attempt is not None
    turn: Message = {"role": "assistant", "content": text}
    attempt = replace(ended.attempt, answer=parsed.content, messages=(*ended.attempt.messages, turn), turns=1)
    reward, parts = judge(chair.spec, attempt, episode_of(chair.spec.author, attempt.task, ended.start.seed))
    return replace(ended, ending=Ending.ANSWERED, reward=reward, parts=parts, attempt=attempt)


def play_cheats(
    subject: Subject, chair: Chair, cheats: Mapping[str, Cheat]
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield the name of each cheat, with success and reward of each of its episodes.

    In a slow environment an episode without success is a cheat's last, and those that call tools play at once.
    """
    if not is_spared(subject, chair):
        for name, cheat in cheats.items():
            yield name, chair.cheated(cheat, subject.slow)
        return
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in cheats}
    for number in range(MIN_EPISODES):
        acting = []
        for name, cheat in cheats.items():
            if number and not results[name][-1][0]:
                continue
            ended = unanswered(subject, chair)[number]
            assert ended.attempt is not None
            text = cheat(chair, ended.attempt.messages)
            event = ended if text is None else judge_answer(subject, chair, text, number)
            if event is None:
                acting.append(name)
            else:
                results[name].append((event.parts["success"], event.reward or 0.0))
        for first in range(0, len(acting), AT_ONCE):
            names = acting[first : first + AT_ONCE]
            plans = [(number, _cheating(chair, cheats[name])) for name in names]
            for name, ends in zip(names, play_at_once(subject, plans), strict=True):
                results[name].append((ends[None].parts["success"], ends[None].reward or 0.0))
    yield from results.items()


def _cheating(chair: Chair, cheat: Cheat) -> Player:
    return lambda event, messages: cheat(chair, messages)


def is_spared(subject: Subject, chair: Chair) -> bool:
    """Return whether checks share episodes: the environment is slow, and has one seat."""
    return subject.slow and chair.spec.solo and not isinstance(chair.author, Harness)  # It decides what is an answer.
