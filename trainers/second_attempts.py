"""Reagent-C (arXiv 2601.22154): an agent plays held-out tasks, reads a critique of each attempt, and tries again.

Nothing is trained, and the first attempts are those of `evaluate`. A second one begins when its critique is there, from
the start that the sampler `refined` would make. Left out: who writes critiques (the judge that `scoring` asks), several
ranks, and games.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from palaestra.agents import Agent, TokenLimits, play
from palaestra.episode import Episode, Start
from palaestra.errors import UsageError
from palaestra.protocols import Arena
from palaestra.trainers.evaluate import SEEDS_BEYOND_TRAINING, Report, compare, held_out, held_out_starts, summarise
from palaestra.trainers.progress import Progress
from palaestra.trainers.sampling.refined import second_start
from palaestra.trainers.sampling.seats import seats_of
from palaestra.trainers.scoring.awaited import Judge, Scoring
from palaestra.trainers.statistics import Comparison

_OF_PREFIX = 2
"""A first attempt with its critique may take one in so many of an episode's tokens."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """An agent measured twice: as it plays, and with a critique of how it has played."""

    first: Report
    second: Report
    first_episodes: list[Episode]
    """In task order."""
    second_episodes: list[Episode]
    without_critique: int
    """Second attempts that had none to read: plain samples."""
    fault: str = ""
    """Why the judge gave up, the last time that it did."""

    @property
    def gain(self) -> Comparison:
        """Second attempts less first ones, paired by task."""
        return compare(self.second_episodes, self.first_episodes)


def attempts(
    agent: Agent,
    arena: Arena,
    scoring: Scoring,
    *,
    tasks: int = 256,
    samples: int = 1,
    temperature: float = 1.0,
    limits: TokenLimits | None = None,
    seed: int = 0,
    stage: str = "evaluation",
    ended: Callable[[Episode], object] | None = None,
) -> Generator[Progress, None, Attempts]:
    """Play the first `tasks` tasks of the arena's split `samples` times each, and each attempt again.

    A generator of Progress, one for each episode that has ended, which `ended` is shown before. `scoring` asks the
    judge whose critiques are read; `critics` makes one.
    """
    if seats := seats_of(arena):
        raise UsageError(f"a game of the seats {', '.join(seats)} has no second attempts: they are one agent's")
    asked, limits = held_out(arena, tasks), limits or TokenLimits()
    queue = deque(held_out_starts(asked, samples, seed))
    total, judged, fault = len(queue), 0, ""

    def starts() -> Iterator[Start | None]:
        nonlocal judged, fault
        while queue or judged < total:
            for scored in scoring.ready():
                judged += 1
                fault = scored.fault or fault
                number = scored.episode.start.seed + SEEDS_BEYOND_TRAINING
                queue.appendleft(second_start(scored, number, limits.max_episode_tokens // _OF_PREFIX))
            yield queue.popleft() if queue else None

    found: tuple[list[Episode], list[Episode]] = ([], [])
    for episode in play(agent, arena, starts(), limits=limits, temperature=temperature):
        is_second = episode.start.seed >= 2 * SEEDS_BEYOND_TRAINING
        found[is_second].append(episode)
        if ended is not None:
            ended(episode)
        if not is_second:
            scoring.put(episode)
        scored = [one.parts["success"] for one in found[True] if one.reward is not None]
        metrics = {"rewards/success/mean": sum(scored) / len(scored)} if scored else {}
        yield Progress(stage, len(found[False]) + len(found[True]), 2 * total, metrics)
    for episodes in found:
        episodes.sort(key=lambda episode: episode.start.key[:3])
    first, second = (summarise(episodes, len(asked), samples, temperature) for episodes in found)
    return Attempts(first, second, *found, sum(not one.start.prefix for one in found[True]), fault)


def critics(judge: Judge, **options: Any) -> Scoring:
    """What asks a judge for critiques and nothing else; close it."""
    return Scoring(lambda episode: {}, judge, **options)
