"""Reagent-C (arXiv 2601.22154): an agent plays held-out tasks, reads a critique of each attempt, and tries again.

Nothing is trained, and the first attempts are played as in `evaluate`. A second attempt begins when its critique is
ready, from the same start as in training (`samplers.reagent_u`). Not in this module: the judge that writes critiques
(see `reward.async_scoring`). Not supported: several ranks, and games.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from palaestra.agents import Agent, TokenLimits, play
from palaestra.episode import Episode, Start
from palaestra.errors import UsageError
from palaestra.protocols import Arena
from palaestra.trainers.evaluation.evaluate import (
    SEEDS_BEYOND_TRAINING,
    Report,
    compare,
    held_out_starts,
    partial_report,
    summarise,
    until_spent,
)
from palaestra.trainers.evaluation.statistics import PairedDifference
from palaestra.trainers.reward.async_scoring import JudgeFunction, Scoring
from palaestra.trainers.run.progress import OnProgress, Progress, ignore
from palaestra.trainers.samplers.reagent_u import second_start
from palaestra.trainers.samplers.seats import seats_of
from palaestra.trainers.samplers.task_of_group import held_out

_OF_PREFIX = 2
"""A first attempt with its critique may use at most one in this many of an episode's tokens."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Two evaluations of an agent: without and with a critique of its first attempt."""

    first: Report
    second: Report
    first_episodes: list[Episode]
    """Episodes of first attempts, in task order."""
    second_episodes: list[Episode]
    without_critique: int
    """Number of second attempts without a critique: plain samples."""
    fault: str = ""
    """Last error of the judge; "" if it never failed."""

    @property
    def gain(self) -> PairedDifference:
        """Return the comparison of second attempts with first ones, paired by task."""
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
    greedy: bool = False,
    earlier: Iterable[Episode] = (),
    ended: Callable[[Episode], object] | None = None,
    on_progress: OnProgress = ignore,
) -> Attempts:
    """Play the first `tasks` tasks of the arena's split `samples` times each. Repeat each attempt with its critique.

    Each episode is passed to `ended` when it ends. `scoring` requests the critiques from a judge; `critics` creates
    one. `greedy` and `earlier` are as in `evaluate`.
    """
    if seats := seats_of(arena):
        raise UsageError(f"a game of the seats {', '.join(seats)} has no second attempts: they are one agent's")
    task_list, limits = held_out(arena, tasks), limits or TokenLimits()
    queue = deque(held_out_starts(task_list, samples, seed, greedy=greedy))
    total, fault = len(queue), ""
    by_attempt = _attempts_before(queue, earlier, scoring)
    answered = len(by_attempt[True])

    def starts() -> Iterator[Start | None]:
        nonlocal answered, fault
        while queue or answered < total:
            for scored in scoring.ready():
                answered += 1
                fault = scored.fault or fault
                number = scored.episode.start.seed + SEEDS_BEYOND_TRAINING
                queue.appendleft(second_start(scored, number, limits.max_episode_tokens // _OF_PREFIX))
            yield queue.popleft() if queue else None

    playing = play(agent, arena, starts(), limits=limits, temperature=temperature)
    with until_spent() as reasons, closing(playing) as finished_episodes:
        for episode in finished_episodes:
            is_second = episode.start.seed >= 2 * SEEDS_BEYOND_TRAINING
            by_attempt[is_second].append(episode)
            if ended is not None:
                ended(episode)
            if not is_second:
                scoring.put(episode)
            scored = [attempt.parts["success"] for attempt in by_attempt[True] if attempt.reward is not None]
            metrics = {"rewards/success/mean": sum(scored) / len(scored)} if scored else {}
            on_progress(Progress(stage, len(by_attempt[False]) + len(by_attempt[True]), 2 * total, metrics))
    for episodes in by_attempt:
        episodes.sort(key=lambda episode: episode.start.key[:3])
    first, second = (
        partial_report(summarise(episodes, len(task_list), samples, temperature), episodes, reasons)
        for episodes in by_attempt
    )
    return Attempts(first, second, *by_attempt, sum(not attempt.start.prefix for attempt in by_attempt[True]), fault)


def _attempts_before(
    queue: deque[Start], earlier: Iterable[Episode], scoring: Scoring
) -> tuple[list[Episode], list[Episode]]:
    """Return the first and second attempts that were played before, and leave the starts of the others in the queue.
    A first attempt without a second one gets its critique now.
    """
    episode_by_key = {episode.start.key: episode for episode in earlier}
    firsts, seconds = list[Episode](), list[Episode]()
    for start in [queue.popleft() for _ in range(len(queue))]:
        later = replace(start, seed=start.seed + SEEDS_BEYOND_TRAINING)
        first, second = episode_by_key.get(start.key), episode_by_key.get(later.key)
        if first is None:
            queue.append(start)
            continue
        firsts.append(first)
        if second is not None:
            seconds.append(second)
        else:
            scoring.put(first)
    return firsts, seconds


def critics(judge: JudgeFunction, **options: Any) -> Scoring:
    """Return a `Scoring` without reward terms, which only requests critiques from a judge. The caller must close it."""
    return Scoring(lambda episode: {}, judge, **options)
