"""Create the sampler of a run from the run's settings, and restore its state after the run's last step."""

from palaestra.protocols import Arena
from palaestra.trainers.config.grpo_config import GRPOConfig
from palaestra.trainers.data.curated import curated_tasks
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.losses.group_advantages import GreedyBaseline
from palaestra.trainers.rollout.rank_sampler import Share
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.sampler import Sampler
from palaestra.trainers.samplers.seats import check_seats, seats_of
from palaestra.trainers.samplers.task_of_group import counts_in


def make_sampler(config: GRPOConfig, arena: Arena) -> Sampler:
    """Return a new sampler over all tasks of an arena, or over the curated tasks if the config names a file of them."""
    env_id, seats, recipe = config.env.env_id, seats_of(arena), config.recipe
    check_seats(arena, config.env.train_seats)
    tasks = curated_tasks(config.env.curated, env_id)
    groups = Groups(
        config.play.num_prompts,
        config.play.num_generations,
        seats,
        learning=frozenset(config.env.train_seats or seats),
        greedy=isinstance(recipe.advantage, GreedyBaseline),
        tasks=tasks,
        reward_range=recipe.reward_range,
    )
    counts = {env or env_id: count for env, count in counts_in(arena, 0)[1].items()}
    counts |= {env: len(chosen) for env, chosen in tasks.items()}
    return recipe.sampler(env_id, counts, groups, config.seed)


def open_sampler(learner: Learner[GRPOConfig], arena: Arena) -> Sampler:
    """Return the sampler of a run in the state after its last step; this rank's share of it if each rank plays one."""
    sampler = make_sampler(learner.config, arena)
    if learner.ranks.count > 1 and not learner.config.first_rank_plays:
        sampler = Share(sampler, learner.ranks, seats_of(arena))
    if learner.state:
        sampler.load(learner.state)
    return sampler
