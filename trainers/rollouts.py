"""Play what a sampler asks for, score it as it ends, and give whole batches.

Without a lead each batch is played with the weights of the step before it, and play and learning take turns. Left out:
play that goes on while the learner learns (`ahead`).
"""

from collections.abc import Generator, Iterator
from dataclasses import replace

from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.policies.table import trained_engines
from palaestra.episode import Start
from palaestra.protocols import Arena
from palaestra.trainers.ahead import played_ahead
from palaestra.trainers.batch import Batch
from palaestra.trainers.sampling.sampler import Sampler
from palaestra.trainers.scoring.awaited import Scoring
from palaestra.trainers.turns import Turns


def rollouts(
    agent: Agent,
    arena: Arena,
    sampler: Sampler,
    scoring: Scoring,
    *,
    limits: TokenLimits | None = None,
    temperature: float = 1.0,
    max_staleness: int = 0,
    turns: Turns | None = None,
) -> Generator[Batch, None, None]:
    """One batch after another, for as long as they are asked for; to be closed.

    With `max_staleness` play goes on in between, on a thread, and whoever changes the engine's weights takes its turn.
    """
    if max_staleness:
        yield from played_ahead(
            agent,
            arena,
            sampler,
            scoring,
            limits=limits,
            temperature=temperature,
            max_staleness=max_staleness,
            turns=turns or Turns(),
        )
    made: list[Batch] = []

    def starts() -> Iterator[Start | None]:
        """Until the batch is complete. Asked only when a slot is free: news of a judge waits until then."""
        while True:
            for scored in scoring.ready():
                sampler.heard(scored)
            batch = sampler.batch()
            if batch is not None:
                made.append(batch)
                return
            yield sampler.next()

    while True:
        before = agent.engine.sampled
        for episode in play(agent, arena, starts(), limits=limits, temperature=temperature, wanted=sampler.wanted):
            scoring.put(episode)
        batch = made.pop()
        for engine in trained_engines(agent):
            if engine.shares_weights:  # What its cache takes, the learner may need now. `publish` takes it back.
                engine.release()
        # Of all that was played: episodes that were dropped, given up or BROKEN have cost tokens too.
        yield replace(batch, figures={**batch.figures, "num_tokens/sampled": agent.engine.sampled - before})
