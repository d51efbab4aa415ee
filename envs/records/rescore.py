"""Another reward over recorded episodes: an idea about rewards is tried on what was played, before anything is trained.

A reward is named as an environment's id (its `reward` and declared parts), or as a function "module:name" that takes an
Attempt and gives what the `reward` of an environment may give. It is held to the same: success lies from 0 to 1, and
other parts are declared, by an attribute `parts` of the function. One that asks a judge (`async def`) is waited for,
episode by episode; an episode whose judge does not answer becomes BROKEN. Left out: rewards that need tokens or
training state (shaping).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import gymnasium

from palaestra.envs.core.authored import Authored
from palaestra.envs.core.opening import open_env
from palaestra.envs.core.scoring import RewardPart, check_declared, score
from palaestra.envs.core.verdict import complete
from palaestra.episode import Attempt, Ending
from palaestra.errors import Broken, EnvironmentDefect, PalaestraError, UnknownId, UsageError
from palaestra.record import Record
from palaestra.registry import registered

Scorer = Callable[[Attempt], tuple[float, Mapping[str, float]]]


def find_scorer(name: str) -> Scorer:
    """The reward of that name: of an environment, or a function of an Attempt."""
    if name.rpartition(":")[2] in gymnasium.registry:
        return _of_environment(name)
    module, colon, function = name.partition(":")
    if not colon:
        raise UnknownId(name, registered())
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"no reward {name!r}: {error}; expected 'module:function' or an id") from error
    if not callable(found):
        raise UsageError(f"{name} is {found!r}; expected a function of an Attempt")
    return _of_function(name, found)


def rescore(record: Record, scorer: Scorer) -> Record:
    """The same episode with another reward. A BROKEN one stays without; a lesson, which compared the old, goes."""
    episode = record.episode
    if episode.reward is None:
        return replace(record, lesson=None)
    try:
        reward, parts = scorer(episode.attempt)
    except Broken as error:
        broken = replace(episode, reward=None, parts={}, ending=Ending.BROKEN, fault=f"no reward: {error}")
        return replace(record, episode=broken, lesson=None)
    return replace(record, episode=replace(episode, reward=reward, parts=parts), lesson=None)


def _of_environment(env_id: str) -> Scorer:
    env = open_env(env_id, {})

    def scorer(attempt: Attempt) -> tuple[float, Mapping[str, float]]:
        env.problem = attempt.task
        return env.judge(attempt)

    return scorer


def _of_function(name: str, function: Callable[[Attempt], Any]) -> Scorer:
    """Its parts are those that it declares, as Progressive does by itself, or success alone."""
    declared: Mapping[str, RewardPart] = getattr(function, "parts", {"success": RewardPart()})
    check_declared(name, declared)

    def scorer(attempt: Attempt) -> tuple[float, Mapping[str, float]]:
        try:
            returned = complete(function(attempt), Authored.reward_timeout)
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
