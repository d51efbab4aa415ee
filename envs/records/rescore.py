"""Another reward for recorded episodes: an idea about rewards can be tried on recorded episodes before any training.

A reward is named as an environment's id (its `reward` and declared parts), or as a function "module:name" that takes an
Attempt and returns what the `reward` of an environment may return. The same rules apply: success is from 0 to 1, and
other parts are declared, by an attribute `parts` of the function. A reward that asks a judge (`async def`) is awaited,
episode by episode; an episode whose judge does not answer becomes BROKEN. A game whose rounds decide the rewards is
played again from its record (`rescore_game`). Left out: rewards that need tokens or training state (shaping).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import isawaitable
from typing import Any

from palaestra.envs.core.author import ToolEnv
from palaestra.envs.core.declared import DEADLINES
from palaestra.envs.core.ending import verdict
from palaestra.envs.core.scoring import RewardPart, check_declared, score
from palaestra.envs.core.spec import Spec
from palaestra.envs.records.gathering import Placed, ReplayMachines, episodes_of
from palaestra.envs.records.replay import Difference, lead
from palaestra.envs.running.runner import wait_for
from palaestra.envs.running.work import Conditions, Pending, Work, WorkMode
from palaestra.episode import Attempt, Ending, Event
from palaestra.errors import Broken, EnvironmentDefect, PalaestraError, UnknownId, UsageError
from palaestra.record import Record
from palaestra.registry import demonstrator, is_game, registered, registered_author

Scorer = Callable[[Attempt], tuple[float, Mapping[str, float]]]


def find_scorer(name: str, options: Mapping[str, Any] | None = None) -> Scorer:
    """Return the reward with this name: that of an environment, opened with these options, or a function of an
    Attempt."""
    if registered_author(name.rpartition(":")[2]) is not None:
        return partial(judge, ReplayMachines(options).machine(name, {}).spec)
    module, colon, function = name.partition(":")
    if not colon:
        raise UnknownId(name, registered())
    try:
        scorer = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"no reward {name!r}: {error}; expected 'module:function' or an id") from error
    if not callable(scorer):
        raise UsageError(f"{name} is {scorer!r}; expected a function of an Attempt")
    return _of_function(name, scorer)


def rescore(record: Record, scorer: Scorer) -> Record:
    """Return the record with another reward; BROKEN ones get none. Lessons used the old reward, and are dropped."""
    if record.episode.reward is None:
        return replace(record, lessons=())
    try:
        reward, parts = scorer(record.episode.attempt)
    except Broken as error:
        return _rewarded(record, None, {}, str(error))
    return _rewarded(record, reward, parts)


def rescore_game(whole: Sequence[Placed], game_id: str, stage: ReplayMachines) -> list[Record]:
    """Return the records of a game's seats, with rewards from the rounds of `game_id`. A BROKEN game gets no reward."""
    (place, first), records = whole[0], [record for _, record in whole]
    if first.episode.reward is None:
        return [replace(record, lessons=()) for record in records]
    if not is_game(first.env_id):
        raise UsageError(f"{place} is of {first.env_id}; {game_id} is a game, and rewards games alone")
    machine, episodes = stage.machine(game_id, first.options), episodes_of(records)
    by_rule = "seat" in first.options
    if not set(episodes) <= set(machine.seats) or not (by_rule or len(episodes) == len(machine.seats)):
        raise UsageError(f"{place} is of {first.env_id}, whose seats are not those of {game_id}: {machine.seats}")
    try:
        events = lead(machine, episodes, demonstrator(first.env_id) if by_rule else None)
    except Difference as error:
        raise UsageError(f"{place} cannot be rewarded as {game_id}, which asks for other turns: {error}") from error
    ends: list[Event] = [events[seat] for seat in episodes]
    return [
        _rewarded(seat_record, end.reward, end.parts, end.fault) for seat_record, end in zip(records, ends, strict=True)
    ]


def judge(spec: Spec, attempt: Attempt, author: ToolEnv | None = None) -> tuple[float, Mapping[str, float]]:
    """Return reward and parts of an attempt. Unless `author` is given, the object has no state of an episode."""
    author = author or spec.author
    if attempt.seat not in spec.seats:
        raise UsageError(f"the attempt is of the seat {attempt.seat!r}; the seats of {spec.name} are {spec.seats}")
    try:
        returned = complete(author.reward(attempt), {**DEADLINES, **spec.author.deadlines}["reward"])
    except AttributeError as error:
        if error.name != "problem" or error.obj is not spec.author:
            raise
        raise EnvironmentDefect(
            f"{spec.owner}.reward reads self.problem, which no recorded attempt has; read attempt.task instead"
        ) from error
    return score(spec.owner, spec.author.parts, returned)


def complete(returned: Any, seconds: float) -> Any:
    """Return the result of a reward or an explanation, awaited if necessary. Raise Broken after `seconds`."""
    if not isawaitable(returned):
        return returned
    work = Work("reward", lambda: returned, Conditions(WorkMode.ASYNC, seconds))
    wait_for(Pending((work,)))
    return verdict(work)


def _rewarded(record: Record, reward: float | None, parts: Mapping[str, float], fault: str = "") -> Record:
    episode = replace(record.episode, reward=reward, parts=parts)
    if reward is None:
        episode = replace(episode, ending=Ending.BROKEN, fault=f"no reward: {fault}")
    return replace(record, episode=episode, lessons=())


def _of_function(name: str, function: Callable[[Attempt], Any]) -> Scorer:
    """Return a scorer from a function. Its parts are those in the function's attribute `parts`, or else success
    alone."""
    declared: Mapping[str, RewardPart] = getattr(function, "parts", {"success": RewardPart()})
    check_declared(name, declared)

    def scorer(attempt: Attempt) -> tuple[float, Mapping[str, float]]:
        try:
            returned = complete(function(attempt), DEADLINES["reward"])
        except PalaestraError:
            raise
        except Exception as error:
            raise EnvironmentDefect(
                f"{name} raised {type(error).__name__}: {error} (in task {attempt.task.id})"
            ) from error
        unknown = [part for part in returned if part not in declared] if isinstance(returned, Mapping) else []
        if unknown:
            written = f"{name.rpartition(':')[2]}.parts = {{'success': RewardPart(), {unknown[0]!r}: RewardPart(...)}}"
            raise EnvironmentDefect(
                f"{name} gave the part {unknown[0]!r}, which is not declared (declared: {', '.join(declared)}); "
                f"declare it below the function: {written}"
            )
        return score(name, declared, returned)

    return scorer
