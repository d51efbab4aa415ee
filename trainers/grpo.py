"""Group relative policy optimization, top to bottom: play, shape, compare, learn, publish.

Left out: where the tasks come from beyond an even draw (`sampling`), the step from advantages to weights (`update`),
what survives a killed process (`checkpoint`), saving and showing (`run`, the command line).
"""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from palaestra.agents import TokenLimits, play
from palaestra.agents.policies.table import in_every_seat
from palaestra.episode import Episode
from palaestra.errors import TrainingHalted
from palaestra.protocols import Arena
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.advantages import group_advantages
from palaestra.trainers.metrics import play_metrics
from palaestra.trainers.progress import Progress
from palaestra.trainers.sampling.seats import check_seats, seat_metrics, seated, seats_of, taught
from palaestra.trainers.sampling.uniform import uniform_starts
from palaestra.trainers.shaping import shape
from palaestra.trainers.update import update

Advantages = Callable[[Sequence[float], Sequence[int]], NDArray[np.float64]]


def train(learner: Learner, arena: Arena, advantages: Advantages = group_advantages) -> Iterator[Progress]:
    """Take the learner from the step it stands at to its last, in `arena`; one Progress a step.

    Whenever this yields, the learner stands between two steps: it can be saved, and go on from there bit by bit.
    `advantages` turns rewards and groups into advantages; a control experiment passes another.
    """
    config, agent = learner.config, in_every_seat(learner.agent, seats_of(arena))
    limits = TokenLimits(config.max_turn_tokens, config.longest_row)
    check_seats(arena, config.train_seats)
    learner.publish()
    while learner.step < config.steps:
        began = time.perf_counter()
        starts = uniform_starts(
            learner.step,
            task_count=arena.task_count,
            num_prompts=config.num_prompts,
            num_generations=config.num_generations,
            seed=config.seed,
        )
        played = list(play(agent, arena, seated(starts, arena), limits=limits, temperature=config.temperature))
        scored = _scored(played, config.max_broken_share)
        episodes = taught(scored, config.train_seats)
        terms = [shape(episode, config.algorithm) for episode in episodes]
        groups = [episode.start.group for episode in episodes]
        values = advantages([sum(term.values()) for term in terms], groups)
        metrics = play_metrics(episodes, terms, broken=len(played) - len(scored)) | seat_metrics(scored)
        playing = time.perf_counter() - began
        learned, lessons = update(learner, episodes, terms, values)
        metrics |= learned | {
            "time/play": playing,
            "time/learn": time.perf_counter() - began - playing,
            "step_time": time.perf_counter() - began,
        }
        learnt = {id(episode): lesson for episode, lesson in zip(episodes, lessons, strict=True)}
        kept = [(episode, learnt.get(id(episode))) for episode in played]
        yield Progress("grpo", learner.step, config.steps, metrics, played=kept)


def _scored(played: Sequence[Episode], max_broken_share: float) -> list[Episode]:
    """The episodes that have a reward; too many without one end the run."""
    broken = [episode for episode in played if episode.reward is None]
    if len(broken) > max_broken_share * len(played) or len(broken) == len(played):
        raise TrainingHalted(
            f"{len(broken)} of {len(played)} episodes of this step are BROKEN, more than max_broken_share="
            f"{max_broken_share}; the last fault: {broken[-1].fault}"
        )
    scored = [episode for episode in played if episode.reward is not None]
    if not any(episode.sampled_tokens for episode in scored):
        raise TrainingHalted(
            "no episode of this step holds a sampled token; are the prompts longer than max_episode_tokens?"
        )
    if not all(np.isfinite(row.logprobs).all() for episode in scored for row in episode.rows):
        raise TrainingHalted("the engine reports log-probs that are not numbers; the weights have diverged")
    return scored
