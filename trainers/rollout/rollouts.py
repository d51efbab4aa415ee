"""Collect batches of scored episodes: play the sampler's starts and score each episode when it ends.

By default each batch is played with the weights of the last step. With `max_staleness` above 0, play continues while
the weights are updated (`async_rollouts`). Several ranks each play their share of a batch (`rank_sampler`), or the
first rank plays it alone and broadcasts it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.policies.table import in_every_seat, trained_engines
from palaestra.episode import Start
from palaestra.protocols import Arena
from palaestra.trainers.batch import Batch
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.reward.async_scoring import Scoring
from palaestra.trainers.reward.open_judge import open_judge, open_scoring
from palaestra.trainers.reward.staged_shaping import Curriculum, Fixed, opened
from palaestra.trainers.rollout.async_rollouts import PlayAhead, require_own_weights
from palaestra.trainers.rollout.engine_lock import EngineLock
from palaestra.trainers.rollout.make_sampler import open_sampler
from palaestra.trainers.samplers.sampler import Sampler
from palaestra.trainers.samplers.seats import seats_of

SAMPLED = "num_tokens/sampled"
"""Metric of the tokens that an engine sampled for a batch. Each rank that plays has one for its own episodes."""


class Rollouts:
    """The source of a learner's batches, which are the same on all ranks. Use it in a `with` block.

    Play begins at the sampler state in `learner.state`, and after a `pause` again at the state of that time.
    """

    def __init__(self, learner: Learner[GRPOConfig], arena: Arena | None) -> None:
        """`arena` is None on a rank that does not play."""
        recipe, play_config = learner.config.recipe, learner.config.play
        require_own_weights(learner.agent, play_config.max_staleness)
        self._learner, self._arena, self._lock = learner, arena, EngineLock()
        self._judge = None if recipe.judge is None else open_judge(recipe.judge)
        self._shaping: Fixed | Curriculum | None = None
        self._next: Callable[[], Batch] | None = None
        self._playing = ExitStack()

    def next(self) -> Batch:
        """Return the next batch: play until it is complete or, with `max_staleness`, wait for the oldest queued one."""
        ranks = self._learner.ranks
        if self._shaping is None:
            self._shaping = opened(self._learner.config.recipe.shaping, self._learner.state)
        if self._learner.config.first_rank_plays:
            return ranks.broadcast(lambda: _recorded(self._played()) if ranks.count > 1 else self._played())
        batch = self._played()
        return replace(batch, figures={**batch.figures, **ranks.summed({SAMPLED: batch.figures[SAMPLED]})})

    def learned_from(self, batch: Batch) -> Mapping[str, Any]:
        """Return the state of sampler and reward after a trained batch: a resumed run continues from it."""
        assert self._shaping is not None, "the batch came from `next`"
        return self._shaping.after(batch)

    def publish(self) -> None:
        """Make the engine sample from the learner's weights. A thread that plays ahead waits during this call."""
        with self._lock.take(urgent=True):
            self._learner.publish()

    def pause(self) -> None:
        """Stop playing ahead, so that the engine is free. Batches played ahead are dropped and played again."""
        if self._learner.config.play.max_staleness:
            self._stop()

    def close(self) -> None:
        """Stop playing and close the judge. If stopping raises an error, the judge is closed all the same."""
        with ExitStack() as stack:
            if self._judge is not None:
                stack.callback(self._judge.close)
            stack.callback(self._stop)

    def __enter__(self) -> "Rollouts":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _played(self) -> Batch:
        """Return the next batch that this rank plays."""
        if self._next is None:
            self._next = self._begin()
        return self._next()

    def _begin(self) -> Callable[[], Batch]:
        learner, arena, play_config = self._learner, self._arena, self._learner.config.play
        assert arena is not None and self._shaping is not None, "this rank plays"
        scoring = open_scoring(self._shaping, self._judge, ordered=arena.ordered)
        self._playing.callback(scoring.close)
        play_arguments = in_every_seat(learner.agent, seats_of(arena)), arena, open_sampler(learner, arena), scoring
        limits = TokenLimits(play_config.max_turn_tokens, learner.config.longest_row)
        play_options: dict[str, Any] = {"limits": limits, "temperature": play_config.temperature}
        if not play_config.max_staleness:
            return partial(play_batch, *play_arguments, **play_options)
        ahead = PlayAhead(*play_arguments, **play_options, max_staleness=play_config.max_staleness, lock=self._lock)
        self._playing.callback(ahead.close)
        return ahead.next

    def _stop(self) -> None:
        self._next = self._shaping = None
        self._playing.close()


def _recorded(batch: Batch) -> Batch:
    """Return a batch without the branch points of its episodes, which hold live environments. No learner reads them."""
    rollouts = (
        replace(scored, episode=replace(scored.episode, start=_unbranched(scored.episode.start), branch_points={}))
        for scored in batch.rollouts
    )
    return replace(batch, rollouts=tuple(rollouts))


def _unbranched(start: Start) -> Start:
    return start if start.branch is None else replace(start, branch=replace(start.branch, point=None))


def play_batch(
    agent: Agent,
    arena: Arena,
    sampler: Sampler,
    scoring: Scoring,
    *,
    limits: TokenLimits | None = None,
    temperature: float = 1.0,
) -> Batch:
    """Play until the sampler has a complete batch, and return it. Its metrics count dropped episodes too."""
    batch: Batch | None = None

    def starts() -> Iterator[Start | None]:
        """Yield starts until the batch is complete. `play` asks for one, so scores are read, only if a slot is free."""
        nonlocal batch
        while True:
            for scored in scoring.ready():
                sampler.observe(scored)
            batch = sampler.batch()
            if batch is not None:
                return
            yield sampler.next()

    sampled_before = agent.engine.sampled
    for episode in play(
        agent, arena, starts(), limits=limits, temperature=temperature, still_needed=sampler.still_needed
    ):
        scoring.put(episode)
    assert batch is not None, "play ends when the batch is complete"
    for engine in trained_engines(agent):
        if engine.shares_memory:  # The learner needs it. `publish` reclaims it.
            engine.release()
    return replace(batch, figures={**batch.figures, SAMPLED: agent.engine.sampled - sampled_before})
