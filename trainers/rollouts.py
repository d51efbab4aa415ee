"""Play what a sampler asks for, score it as it ends, and give whole batches.

Left out: playing ahead of the learner. Each batch is played with the weights of the step before it.
"""

from collections.abc import Iterator
from dataclasses import replace

from palaestra.agents import Agent, TokenLimits, play
from palaestra.episode import Start
from palaestra.protocols import Arena
from palaestra.trainers.batch import Batch
from palaestra.trainers.sampling.sampler import Sampler
from palaestra.trainers.scoring.awaited import Scoring


def rollouts(
    agent: Agent,
    arena: Arena,
    sampler: Sampler,
    scoring: Scoring,
    *,
    limits: TokenLimits | None = None,
    temperature: float = 1.0,
) -> Iterator[Batch]:
    """One batch after another, for as long as they are asked for."""
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
        # Of all that was played: episodes that were dropped, given up or BROKEN have cost tokens too.
        yield replace(batch, figures={**batch.figures, "num_tokens/sampled": agent.engine.sampled - before})
