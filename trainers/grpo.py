"""Group relative policy optimization, top to bottom: play, look, compare, learn, publish.

Every algorithm is a recipe: other functions in the same loop. Left out: what is played next (`sampling`), what an
episode is worth (`scoring`), the step from advantages to weights (`update`), what survives a killed process
(`checkpoint`), and saving and showing (`run`, the command line).
"""

import gc
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext

from palaestra.agents import TokenLimits
from palaestra.agents.policies.table import in_every_seat
from palaestra.episode import Episode
from palaestra.mixture import read_mixture
from palaestra.protocols import Arena
from palaestra.record import Lesson
from palaestra.trainers.ahead import require_own_weights
from palaestra.trainers.audit.collapse import Collapse
from palaestra.trainers.audit.findings import require
from palaestra.trainers.audit.groups import advantage_findings
from palaestra.trainers.audit.live import audited
from palaestra.trainers.batch import Batch
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.learner import Learner
from palaestra.trainers.look import look
from palaestra.trainers.losses.advantages import damped
from palaestra.trainers.metrics import batch_metrics, mixture_metrics
from palaestra.trainers.progress import Progress
from palaestra.trainers.rollouts import rollouts
from palaestra.trainers.samplers import open_sampler
from palaestra.trainers.sampling.seats import seats_of
from palaestra.trainers.scoring.progressive import opened
from palaestra.trainers.scoring.reasoning import scoring
from palaestra.trainers.turns import Turns
from palaestra.trainers.update import update

_OF_A_RANK = ("num_tokens/sampled",)
"""Figures that a rank has of its own play: all others are of the whole batch."""


def train(learner: Learner[GRPOConfig], arena: Arena) -> Generator[Progress, None, None]:
    """Take the learner from the step it stands at to its last, in `arena`; one Progress a step.

    Whenever this yields, the learner stands between two steps: it can be saved, and go on from there bit by bit.
    """
    config, seats, recipe, turns = learner.config, seats_of(arena), learner.config.recipe, Turns()
    mixture, collapse = read_mixture(config.env.env_id), Collapse(config.collapse)
    require_own_weights(learner.agent, config.play.max_staleness)
    sampler = open_sampler(learner, arena)
    agent, limits = in_every_seat(learner.agent, seats), TokenLimits(config.play.max_turn_tokens, config.longest_row)
    learner.publish()
    judge = None if recipe.judge is None else recipe.judge.opened()
    played = rollouts(
        agent,
        arena,
        sampler,
        scored := scoring(shaping := opened(recipe.shaping, learner.state), judge, ordered=arena.ordered),
        limits=limits,
        temperature=config.play.temperature,
        max_staleness=config.play.max_staleness,
        turns=turns,
    )
    asked = nullcontext() if judge is None else closing(judge)
    with _loaded_for_good(), asked, closing(scored), closing(played) as batches:
        while learner.step < learner.steps:
            learner.require_gradients()
            collapse.require_none()
            began = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - began
            odd = audited(learner, batch)
            metrics = {"time/play": waited} | batch_metrics(batch) | odd
            metrics |= mixture_metrics(mixture, batch) if mixture else {}
            metrics |= learner.ranks.summed({name: metrics[name] for name in _OF_A_RANK if name in metrics})
            seen = look(learner, batch)
            advantages = recipe.advantage(batch, seen)
            require(advantage_findings(recipe, batch, seen, advantages))
            figures, lessons = update(learner, batch, damped(advantages, batch, recipe.max_advantage), seen)
            with turns.take(urgent=True):  # Between two polls, where play goes on.
                learner.publish()
            learner.state = shaping.after(batch)
            took = time.perf_counter() - began
            metrics |= figures | {"time/learn": took - waited, "step_time": took}
            note = "; ".join(filter(None, (_note(metrics), collapse.told(metrics))))
            yield Progress("grpo", learner.step, learner.steps, metrics, note, _beside(batch, lessons))


@contextmanager
def _loaded_for_good() -> Iterator[None]:
    """What is loaded now lives as long as the run: the garbage collector would walk it again and again, a quarter of a
    second each time.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _note(metrics: dict[str, float]) -> str:
    """What whoever watches should know of a step."""
    if metrics["skipped_steps"]:
        return f"optimizer steps skipped, for their gradients were no numbers: {metrics['skipped_steps']:.0f}"
    if metrics["frac_reward_zero_std"] == 1:
        return "nothing was learned from rewards in this step: within every group they were equal"
    return ""


def _beside(batch: Batch, lessons: list[Lesson]) -> list[tuple[Episode, tuple[Lesson, ...]]]:
    """Each episode that was played, with what was made of it; nothing of those that are no sample."""
    found: list[list[Lesson]] = [[] for _ in batch.played]
    for sample, lesson in zip(batch.samples, lessons, strict=True):
        found[sample.place].append(lesson)
    return [(scored.episode, tuple(own)) for scored, own in zip(batch.played, found, strict=True)]
