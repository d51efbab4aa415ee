"""Score episodes as they end. A judge, if there is one, scores them while other episodes are still played.

If an episode is BROKEN, a term is not a finite number, or the judge failed or was too slow, the episode has no terms:
it is dropped and counted, never scored 0. Left out: the judge itself (`reward_model`), and the terms (`terms`).
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from palaestra.endpoint.background import BackgroundLoop
from palaestra.episode import Episode
from palaestra.errors import UsageError
from palaestra.trainers.batch import Scored


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """Result of a judge for one episode."""

    terms: Mapping[str, float]
    """Reward terms, added to those of the episode."""
    remarks: Mapping[str, Any] = field(default_factory=dict)
    """Details to record, such as a score and a critique."""


_REFUSALS = 8
"""Number of permanently refused requests, before any answer, after which the run stops."""
JudgeFunction = Callable[[Sequence[Episode]], Awaitable[Sequence[JudgeResult]]]
"""Scores several episodes in one request, and returns one result for each, in their order."""


class Scoring:
    """Queue that gets episodes when they end (`put`), and returns them with their terms (`ready`)."""

    def __init__(
        self,
        shaping: Callable[[Episode], Mapping[str, float]],
        judge: JudgeFunction | None = None,
        *,
        together: int = 16,
        at_once: int = 8,
        deadline: float = 60.0,
        ordered: bool = False,
    ) -> None:
        """Send the judge up to `together` episodes per request, and up to `at_once` requests at a time. A request fails
        after `deadline` seconds. With `ordered`, `ready` returns nothing until all episodes are judged, and then
        returns them in the order of `put`: so a run repeats bit by bit.
        """
        self._shaping, self._judge = shaping, judge
        self._together, self._deadline, self._ordered = together, deadline, ordered
        self._ready: list[tuple[int, Scored]] = []
        self._waiting: list[tuple[int, Scored]] = []
        self._asked: dict[Future[Sequence[JudgeResult]], list[tuple[int, Scored]]] = {}
        self._loop = BackgroundLoop("the judge of training")
        self._turns = asyncio.Semaphore(at_once)
        self._count = self._refused = 0
        self._answered = False

    def put(self, episode: Episode) -> None:
        """Add an episode that has ended."""
        scored = self._shaped(episode)
        line = self._ready if self._judge is None or scored.terms is None else self._waiting
        line.append((self._count, scored))
        self._count += 1

    def ready(self) -> list[Scored]:
        """Send new episodes to the judge, and return the episodes that were scored since the last call."""
        if self._judge is not None:
            self._ask()
            self._hear()
            if self._ordered:
                if self._asked:
                    return []
                self._ready.sort(key=lambda pair: pair[0])
        scored_episodes = [scored for _, scored in self._ready]
        self._ready.clear()
        return scored_episodes

    def close(self) -> None:
        """Stop judging: cancel all running requests, and do not start the queued ones."""
        self._loop.close(asyncio.sleep(0))

    def _shaped(self, episode: Episode) -> Scored:
        if episode.reward is None:
            return Scored(episode, fault=episode.fault or "it is BROKEN")
        return _checked(Scored(episode, self._shaping(episode)))

    def _ask(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting[: self._together], self._waiting[self._together :]
            self._asked[self._loop.submit(self._judged([scored.episode for _, scored in group]))] = group

    async def _judged(self, episodes: Sequence[Episode]) -> Sequence[JudgeResult]:
        assert self._judge is not None
        async with self._turns:
            return await asyncio.wait_for(self._judge(episodes), self._deadline)

    def _hear(self) -> None:
        for future in [future for future in self._asked if future.done()]:
            group = self._asked.pop(future)
            try:
                remarks = future.result()
                if len(remarks) != len(group):
                    raise ValueError(f"{len(remarks)} remarks on {len(group)} episodes")
            except Exception as error:  # A judge is external code: any error drops the episodes of the request.
                why = f"its judge failed: {type(error).__name__}: {error}"
                self._ready += [(number, Scored(scored.episode, fault=why)) for number, scored in group]
                self._refused += isinstance(error, UsageError)
                if self._refused >= _REFUSALS and not self._answered:
                    raise UsageError(f"the judge refuses every question: {error}") from error
                continue
            self._answered = True
            for (number, scored), remark in zip(group, remarks, strict=True):
                terms = {**(scored.terms or {}), **remark.terms}
                self._ready.append((number, _checked(Scored(scored.episode, terms, remark.remarks))))


def _checked(scored: Scored) -> Scored:
    """Return the scored episode unchanged; if a term is not a finite number, return it with a fault and no terms."""
    wrong = {name: value for name, value in (scored.terms or {}).items() if not math.isfinite(value)}
    if not wrong:
        return scored
    return Scored(scored.episode, fault="; ".join(f"its term {name} is {value}" for name, value in wrong.items()))
