"""A served reward model scores each episode as it ends; the score is a term of the reward (Reagent-R, F32).

R = R_rule + score_weight * score, for right and wrong answers. With a weight of 0 the reward equals the reward without
a judge. An episode without a verdict is dropped and counted. (The released code of arXiv 2601.22154 scores it 0, which
punishes an agent for a failure of the judge.) Left out: the prompt of the model and the parser of its verdicts
(`palaestra.judging`), and retries on one or several servers (`palaestra.endpoint.judge`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from palaestra.endpoint import Endpoint, EndpointConfig
from palaestra.endpoint.config import DEFAULT_KEY, address_of
from palaestra.endpoint.judge import JudgeClient
from palaestra.episode import Episode
from palaestra.errors import ConfigError
from palaestra.judging.prompt import LEAST_CHARS, episode_prompt
from palaestra.judging.verdict import Verdict, read_verdict
from palaestra.options import SERVICE
from palaestra.trainers.reward.async_scoring import JudgeResult
from palaestra.trainers.validation import COUNT, NOT_NEGATIVE, POSITIVE, check_fields

TERM = "judge"
"""Name of the judge's term in the training reward."""
_GRACE = 10.0
"""Seconds of extra timeout beyond that of the judge."""


@dataclass(frozen=True, slots=True)
class ReasoningReward:
    """Settings of a served reward model that reads whole episodes (Agent-RRM)."""

    url: Annotated[tuple[str, ...], SERVICE] = ()
    """Base URLs of its servers, without `/chat/completions`; each request goes to the least loaded."""
    served_as: str = "rrm"
    """Name of the model on its servers."""
    score_weight: Annotated[float, NOT_NEGATIVE] = 0.3
    """Weight of the score, added to the reward of the rule: the paper's lambda."""
    clamp: bool = True
    """Move a score out of range to the nearer bound, and count it; otherwise the verdict is requested again."""
    verdict_tokens: Annotated[int, COUNT] = 1400
    """Maximum tokens of a verdict."""
    read_chars: Annotated[int, COUNT] = 48_000
    """Maximum characters of an episode that the judge is shown. In a longer one, tool results are cut first, with a
    note."""
    tries: Annotated[int, COUNT] = 5
    """Maximum number of requests for a verdict that can be parsed."""
    verdict_seconds: Annotated[float, POSITIVE] = 60.0
    """Timeout for one answer, in seconds."""
    deadline: Annotated[float, POSITIVE] = 180.0
    """Seconds for a verdict, all tries together; then the episode is dropped."""
    at_once: Annotated[int, COUNT] = 64
    """Number of episodes that are judged at once."""
    key_env: Annotated[str, SERVICE] = DEFAULT_KEY
    """Environment variable that holds the servers' key."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.read_chars < LEAST_CHARS:
            raise ConfigError(f"read_chars is {self.read_chars}; expected at least {LEAST_CHARS:,}, or nothing is read")
        for url in self.url:
            address_of(url, "--recipe.judge.url", "http://127.0.0.1:8100/v1")
            self._served(url)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return the smallest and the largest value of the term."""
        return 0.0, self.score_weight

    def opened(self) -> "ReasoningJudge":
        """Return a judge with open connections. The caller must close it."""
        if not self.url:
            raise ConfigError(
                "this recipe asks a reward model, and none is named: --recipe.judge.url http://127.0.0.1:8100/v1, as "
                "`palaestra serve rrm MODEL` prints it"
            )
        return ReasoningJudge(self)

    def _served(self, url: str) -> EndpointConfig:
        # No retries here: the request goes to the next server at once.
        limits: dict[str, Any] = {"timeout": self.verdict_seconds, "patience": 0.0, "max_concurrent": self.at_once}
        return EndpointConfig(url, self.served_as, api_key_env=self.key_env, **limits)


class ReasoningJudge:
    """A `reward.async_scoring.JudgeFunction` that asks the served model for a verdict on each episode."""

    def __init__(self, settings: ReasoningReward) -> None:
        self.settings = settings
        self.client: JudgeClient[Verdict] = JudgeClient(
            [Endpoint(settings._served(url)) for url in settings.url],
            partial(read_verdict, clamp=settings.clamp),
            tries=settings.tries,
            max_tokens=settings.verdict_tokens,
            deadline=settings.deadline,
            patience=settings.deadline,
            thoughts=True,
        )

    @property
    def at_once(self) -> int:
        """Return the number of episodes that are judged at once."""
        return self.settings.at_once

    @property
    def deadline(self) -> float:
        """Return the timeout for an episode's verdict in seconds, a little longer than that of its requests."""
        return self.settings.deadline + _GRACE

    async def __call__(self, episodes: Sequence[Episode]) -> Sequence[JudgeResult]:
        """Return a result for each episode: the term `judge`, and `score`, `critique` and `analysis` as details."""
        return await asyncio.gather(*map(self._remark, episodes))

    async def _remark(self, episode: Episode) -> JudgeResult:
        verdict = await self.client.ask(episode_prompt(episode, self.settings.read_chars))
        details: dict[str, Any] = {"score": verdict.score, "critique": verdict.critique, "analysis": verdict.analysis}
        if verdict.written is not None:
            details["written"] = verdict.written
        return JudgeResult({TERM: self.settings.score_weight * verdict.score}, details)

    def check(self) -> None:
        """Raise `UsageError` if no server can be reached."""
        self.client.check()

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
