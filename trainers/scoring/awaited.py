"""Episodes get their terms as they end. A judge, where there is one, is asked while other episodes are still played.

An episode without terms is dropped and counted, never scored 0: it is BROKEN, its reward is no number, or its judge
failed or was too slow. Left out: who the judge is, and which terms there are (`terms`).
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
class Remark:
    """What a judge says of an episode."""

    terms: Mapping[str, float]
    """Added to the episode's own."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """Beside them, such as a critique."""


_REFUSALS = 8
"""So many requests that a judge refuses for good, before it has answered any, are enough."""
Judge = Callable[[Sequence[Episode]], Awaitable[Sequence[Remark]]]
"""Asked for several episodes together; one Remark each, in their order."""


class Scoring:
    """Takes episodes as they end, and gives them back scored."""

    def __init__(
        self,
        shaping: Callable[[Episode], Mapping[str, float]],
        judge: Judge | None = None,
        *,
        together: int = 16,
        at_once: int = 8,
        deadline: float = 60.0,
        ordered: bool = False,
    ) -> None:
        """A judge gets up to `together` episodes in a request and `at_once` requests; one that takes longer than
        `deadline` seconds is given up. `ordered` gives nothing back before all is judged, and then in order: for runs
        that repeat bit by bit.
        """
        self._shaping, self._judge = shaping, judge
        self._together, self._deadline, self._ordered = together, deadline, ordered
        self._ready: list[tuple[int, Scored]] = []
        self._waiting: list[tuple[int, Scored]] = []
        self._asked: dict[Future[Sequence[Remark]], list[tuple[int, Scored]]] = {}
        self._loop = BackgroundLoop("the judge of training")
        self._turns = asyncio.Semaphore(at_once)
        self._count = self._refused = 0
        self._answered = False

    def put(self, episode: Episode) -> None:
        """Take an episode that has ended."""
        scored = self._shaped(episode)
        line = self._ready if self._judge is None or scored.terms is None else self._waiting
        line.append((self._count, scored))
        self._count += 1

    def ready(self) -> list[Scored]:
        """What has been scored since. Called once a round, it asks the judge for all that came in it."""
        if self._judge is not None:
            self._ask()
            self._hear()
            if self._ordered:
                if self._asked:
                    return []
                self._ready.sort(key=lambda pair: pair[0])
        found = [scored for _, scored in self._ready]
        self._ready.clear()
        return found

    def close(self) -> None:
        """Ask no more. The loop ends all its work at once: of what waits for its turn, nothing begins."""
        self._loop.close(asyncio.sleep(0))

    def _shaped(self, episode: Episode) -> Scored:
        if episode.reward is None:
            return Scored(episode, fault=episode.fault or "it is BROKEN")
        return _checked(Scored(episode, self._shaping(episode)))

    def _ask(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting[: self._together], self._waiting[self._together :]
            self._asked[self._loop.submit(self._judged([scored.episode for _, scored in asked]))] = asked

    async def _judged(self, episodes: Sequence[Episode]) -> Sequence[Remark]:
        assert self._judge is not None
        async with self._turns:
            return await asyncio.wait_for(self._judge(episodes), self._deadline)

    def _hear(self) -> None:
        for future in [future for future in self._asked if future.done()]:
            asked = self._asked.pop(future)
            try:
                remarks = future.result()
                if len(remarks) != len(asked):
                    raise ValueError(f"{len(remarks)} remarks on {len(asked)} episodes")
            except Exception as error:  # A judge is somebody else's program: whatever it raises costs its episodes.
                why = f"its judge failed: {type(error).__name__}: {error}"
                self._ready += [(number, Scored(scored.episode, fault=why)) for number, scored in asked]
                self._refused += isinstance(error, UsageError)
                if self._refused >= _REFUSALS and not self._answered:
                    raise UsageError(f"the judge refuses every question: {error}") from error
                continue
            self._answered = True
            for (number, scored), remark in zip(asked, remarks, strict=True):
                terms = {**(scored.terms or {}), **remark.terms}
                self._ready.append((number, _checked(Scored(scored.episode, terms, remark.said))))


def _checked(scored: Scored) -> Scored:
    """The same, or without terms where one is no number."""
    wrong = {name: value for name, value in (scored.terms or {}).items() if not math.isfinite(value)}
    if not wrong:
        return scored
    return Scored(scored.episode, fault="; ".join(f"its term {name} is {value}" for name, value in wrong.items()))
