"""Open the judge of a recipe: a served reward model, or a judge of your own, which is called once per episode."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palaestra.episode import Episode
from palaestra.trainers.reward.async_scoring import JudgeResult, Scoring
from palaestra.trainers.reward.reward_model import TERM, ReasoningJudge, ReasoningReward

_AT_ONCE, _DEADLINE_SECONDS = 64, 180.0


class OwnJudge:
    """Wrapper of a judge of your own. If it raises an error or is too slow, the episode is dropped and counted."""

    def __init__(self, judge: Callable[[Episode], Any]) -> None:
        self._judge = judge
        self.at_once = int(getattr(judge, "at_once", _AT_ONCE))
        self.deadline = float(getattr(judge, "deadline", _DEADLINE_SECONDS))

    async def __call__(self, episodes: Sequence[Episode]) -> Sequence[JudgeResult]:
        """Return a result for each episode: the term `judge`, and the judge's remarks with its `score`."""
        return await asyncio.gather(*map(self._result, episodes))

    async def _result(self, episode: Episode) -> JudgeResult:
        call = getattr(self._judge, "__call__", self._judge)  # noqa: B004  (of an instance, its method is inspected)
        if inspect.iscoroutinefunction(self._judge) or inspect.iscoroutinefunction(call):
            verdict = await self._judge(episode)
        else:
            verdict = await asyncio.to_thread(self._judge, episode)
        score, remarks = verdict if isinstance(verdict, tuple) else (verdict, {})
        if isinstance(score, bool | str) or not isinstance(remarks, Mapping):
            raise TypeError(f"it returned {verdict!r}; expected a number, or a number and a dict of remarks")
        return JudgeResult({TERM: float(score)}, {"score": float(score), **remarks})

    def check(self) -> None:
        """Do nothing: it is not known whether a judge of your own uses servers."""

    def close(self) -> None:
        """Call the judge's `close` method, if it has one."""
        if close := getattr(self._judge, "close", None):
            close()


def open_judge(judge: Any) -> ReasoningJudge | OwnJudge:
    """Return the judge of a recipe, ready to be called. The caller must close it."""
    return judge.opened() if isinstance(judge, ReasoningReward) else OwnJudge(judge)


def open_scoring(
    shaping: Callable[[Episode], Mapping[str, float]], judge: ReasoningJudge | OwnJudge | None, *, ordered: bool = False
) -> Scoring:
    """Return the `Scoring` of a run, with the judge's limits if there is a judge."""
    if judge is None:
        return Scoring(shaping, ordered=ordered)
    # One episode per request: a failed verdict then drops only one episode.
    return Scoring(shaping, judge, together=1, at_once=judge.at_once, deadline=judge.deadline, ordered=ordered)
