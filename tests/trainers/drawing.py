"""Samplers that are played by hand: which starts succeed is decided by the test."""

from dataclasses import replace

import families

from palaestra.trainers.batch import Scored
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.vspo import VSPO


def opened(options, prompts=4, generations=4, count=10_000, seed=0):
    return options("x/Y-v0", count, Groups(prompts, generations), seed)


def ended(start, success, reward=None):
    """An episode of a start with this success, and another training reward where one is given."""
    episode = families.an_episode(families.token_row(3, [2]), reward=success, task=start.task)
    return Scored(replace(episode, start=start), {"outcome": 2 * success - 1 if reward is None else reward})


def play(source, succeeds, ahead=0, shuffle=None):
    """The next batch, where `succeeds(start)` decides; and all that was played for it."""
    running, begun = [], []
    while (batch := source.batch()) is None:
        while (start := source.next(ahead)) is not None:
            running.append(start)
            begun.append(start)
        running = [start for start in running if source.still_needed(start)]
        place = 0 if shuffle is None else int(shuffle.integers(len(running)))
        start = running.pop(place)
        source.observe(ended(start, float(succeeds(start))))
    return batch, begun


def mixed(start):
    """A third of the groups always fail, a third always succeed, a third are mixed."""
    kind = start.group % 3
    return kind == 1 or (kind == 2 and start.seed % 2 == 0)


def of_rewards(rewards, declared=(-1.0, 1.0), **options):
    """The batch of groups of these training rewards, of which the recipe's terms declare this range."""
    source = VSPO(**options)("x/Y-v0", 10_000, Groups(len(rewards), len(rewards[0]), reward_range=declared))
    while (start := source.next()) is not None:
        group, place = divmod(start.seed, len(rewards[0]))
        source.observe(ended(start, 0.5, reward=rewards[group][place]))
    return source.batch()
