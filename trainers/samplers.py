"""The sampler of a run, as its settings ask for it, where its last step left it."""

from palaestra.protocols import Arena
from palaestra.trainers.config import GRPOConfig
from palaestra.trainers.learner import Learner
from palaestra.trainers.losses.advantages import GreedyBaseline
from palaestra.trainers.sampling.curated import curated_tasks
from palaestra.trainers.sampling.draws import counts_in
from palaestra.trainers.sampling.in_order import Groups
from palaestra.trainers.sampling.sampler import Sampler
from palaestra.trainers.sampling.seats import check_seats, seats_of
from palaestra.trainers.share import Share


def open_sampler(learner: Learner[GRPOConfig], arena: Arena) -> Sampler:
    """Of the arena's tasks, or of those that were curated; each rank's share where there are several."""
    config, env_id, seats = learner.config, learner.config.env.env_id, seats_of(arena)
    check_seats(arena, config.env.train_seats)
    tasks = curated_tasks(config.env.curated, env_id)
    groups = Groups(
        config.play.num_prompts,
        config.play.num_generations,
        seats,
        learning=frozenset(config.env.train_seats or seats),
        greedy=isinstance(config.recipe.advantage, GreedyBaseline),
        tasks=tasks,
    )
    counts = {env or env_id: count for env, count in counts_in(arena, 0)[1].items()}
    counts |= {env: len(chosen) for env, chosen in tasks.items()}
    sampler: Sampler = config.recipe.sampler(env_id, counts, groups, config.seed)
    if learner.ranks.count > 1:
        sampler = Share(sampler, learner.ranks, seats)
    if learner.state:
        sampler.load(learner.state)
    return sampler
