"""Batches of episodes made by hand, for the tests of what is learned from them."""

import families

from palaestra.trainers.batch import Batch, Sample
from palaestra.trainers.scoring.awaited import Scoring


def batch_of(episodes, terms=lambda episode: {"outcome": 2 * episode.reward - 1}, number=0):
    """A batch of all these, in the groups of their starts; what has no terms is played, but no sample."""
    scoring = Scoring(terms)
    for episode in episodes:
        scoring.put(episode)
    played = tuple(scoring.ready())
    taught = [place for place, scored in enumerate(played) if scored.terms is not None]
    groups = sorted({played[place].episode.start.group for place in taught})
    samples = tuple(Sample(place, groups.index(played[place].episode.start.group)) for place in taught)
    return Batch(number, played, samples)


def rewarded(rewards, groups, number=0):
    """A batch in which only rewards and groups matter."""
    pairs = zip(rewards, groups, strict=True)
    made = [families.an_episode(reward=(reward + 1) / 2, group=group) for reward, group in pairs]
    return batch_of(made, number=number)


def spoken(model, specs):
    """Episodes of (group, sampled lengths, reward), whose log-probs are the model's own."""
    episodes = []
    for number, (group, said, reward) in enumerate(specs):
        row = families.token_row(3 + number, said, seed=number, version=0 if reward is not None else -1)
        row.logprobs[row.sampled] = families.fresh_logprobs(model, row)
        episodes.append(families.an_episode(row, reward=reward, group=group))
    return episodes
