"""A served reward model reads each episode as it ends, and its score is a term of the reward (Reagent-R, F32).

R = R_rule + score_weight * score, whether the answer is right or not; with a weight of 0 the reward is what it is
without a judge, bit by bit. A verdict that cannot be had costs its episode all terms: it is dropped and counted. (The
released code of arXiv 2601.22154 scores it 0, which punishes an agent for its judge's failure.) Left out: what the
model is shown and how it is read (`palaestra.judging`), and asking again, of one server or of several
(`palaestra.endpoint.judge`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.config import DEFAULT_KEY, address_of
from palaestra.endpoint.judge import Judge
from palaestra.episode import Episode
from palaestra.errors import ConfigError
from palaestra.judging.prompt import LEAST_CHARS, episode_prompt
from palaestra.judging.verdict import Verdict, read_verdict
from palaestra.trainers.checked import COUNT, NOT_NEGATIVE, POSITIVE, check_fields
from palaestra.trainers.scoring.awaited import Remark, Scoring

TERM = "judge"
"""Its term among those of the training reward."""
_GRACE = 10.0
"""Seconds beyond the judge's own deadline."""


@dataclass(frozen=True, slots=True)
class ReasoningReward:
    """A reward model that reads whole episodes (Agent-RRM), and where it is served."""

    url: tuple[str, ...] = ()
    """Its servers, up to and without `/chat/completions`; the least loaded is asked."""
    served_as: str = "rrm"
    """Its name there."""
    score_weight: Annotated[float, NOT_NEGATIVE] = 0.3
    """What the score counts beside the rule's reward: the paper's lambda."""
    clamp: bool = True
    """Move a score out of range to the nearer bound, and count it; otherwise it is asked for again."""
    verdict_tokens: Annotated[int, COUNT] = 1400
    """Most tokens of a verdict."""
    read_chars: Annotated[int, COUNT] = 48_000
    """Characters of an episode that the judge is shown; of a longer one tool results are cut first, and it says so."""
    tries: Annotated[int, COUNT] = 5
    """How often it is asked for a verdict that can be read."""
    verdict_seconds: Annotated[float, POSITIVE] = 60.0
    """For one answer."""
    deadline: Annotated[float, POSITIVE] = 180.0
    """Seconds for a verdict, all tries together; then the episode is dropped."""
    at_once: Annotated[int, COUNT] = 64
    """Episodes that are judged at once."""
    key_env: str = DEFAULT_KEY
    """Environment variable that holds the servers' key."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.read_chars < LEAST_CHARS:
            raise ConfigError(f"read_chars is {self.read_chars}; expected at least {LEAST_CHARS:,}, or nothing is read")
        for url in self.url:
            address_of(url, "--recipe.judge.url", "http://127.0.0.1:8100/v1")
            self._served(url)

    def opened(self) -> "ReasoningJudge":
        """Somebody to ask; close it."""
        if not self.url:
            raise ConfigError(
                "this recipe asks a reward model, and none is named: --recipe.judge.url http://127.0.0.1:8100/v1, as "
                "`palaestra serve rrm MODEL` prints it"
            )
        return ReasoningJudge(self)

    def _served(self, url: str) -> EndpointConfig:
        # Without patience of its own: the next server is asked at once.
        return EndpointConfig(
            url, self.served_as, self.key_env, self.verdict_seconds, patience=0.0, max_concurrent=self.at_once
        )


class ReasoningJudge:
    """Asks for a verdict on each episode; a `scoring.awaited.Judge`."""

    def __init__(self, settings: ReasoningReward) -> None:
        self.settings = settings
        self.asked: Judge[Verdict] = Judge(
            [Endpoint(settings._served(url)) for url in settings.url],
            partial(read_verdict, clamp=settings.clamp),
            tries=settings.tries,
            max_tokens=settings.verdict_tokens,
            deadline=settings.deadline,
            patience=settings.deadline,
            thoughts=True,
        )

    async def __call__(self, episodes: Sequence[Episode]) -> Sequence[Remark]:
        """A Remark on each: the term `judge`, and beside it `score`, `critique` and `analysis`."""
        return await asyncio.gather(*map(self._remark, episodes))

    async def _remark(self, episode: Episode) -> Remark:
        verdict = await self.asked.ask(episode_prompt(episode, self.settings.read_chars))
        said: dict[str, Any] = {"score": verdict.score, "critique": verdict.critique, "analysis": verdict.analysis}
        if verdict.written is not None:
            said["written"] = verdict.written
        return Remark({TERM: self.settings.score_weight * verdict.score}, said)

    def check(self) -> None:
        """A UsageError where no server can be reached."""
        self.asked.check()

    def close(self) -> None:
        """Hang up."""
        self.asked.close()


def scoring(
    shaping: Callable[[Episode], Mapping[str, float]], judge: ReasoningJudge | None, *, ordered: bool = False
) -> Scoring:
    """What gives episodes their terms, those of a judge among them where there is one."""
    if judge is None:
        return Scoring(shaping, ordered=ordered)
    settings = judge.settings
    # One episode a request: what the judge cannot say of one shall not cost others their terms.
    return Scoring(
        shaping, judge, together=1, at_once=settings.at_once, deadline=settings.deadline + _GRACE, ordered=ordered
    )
