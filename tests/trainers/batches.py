"""Batches of episodes made by hand, and small random agents, for the tests of what is learned from them."""

import families
import torch
from families import restless

from palaestra import Ending, Status
from palaestra.agents.local_model import serve
from palaestra.trainers.batch import Batch, Sample
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.reward.async_scoring import Scoring

TOKENIZER = families.TOKENIZERS["tiny"]
# A random agent never succeeds; it differs in length, and with so short a limit that is rewarded.
SMALL = {
    "num_prompts": 4,
    "num_generations": 4,
    "num_mini_batches": 2,
    "slots": 16,
    "max_turn_tokens": 30,
    "max_completion_length": 10,
    "device": "cpu",
}


def settings(recipe="grpo-tcr", **changes):
    return tiny_config("palaestra/TwoHop-v0", recipe, **{"steps": 2, **SMALL, **changes})


def local(slots=16, **made):
    return serve(restless(**made), TOKENIZER, slots=slots)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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


def scripted():
    """Two that think long and call seldom, one that does the opposite, one that does both, and one in the middle."""
    OK, FAILED = Status.OK, Status.TOOL_ERROR
    specs = [
        (40, 2, [OK], 1.0, Ending.ANSWERED),
        (60, 2, [OK], 1.0, Ending.ANSWERED),
        (12, 4, [FAILED, OK, FAILED], 0.0, Ending.TURN_LIMIT),
        (90, 3, [OK, OK, OK], 0.0, Ending.LENGTH_LIMIT),
        (40, 2, [OK, OK], 0.0, Ending.ANSWERED),
    ]
    return [
        families.an_episode(
            families.token_row(4, [tokens], logprob=-0.5),
            reward=reward,
            calls=calls,
            ending=ending,
            turns=turns,
            seed=at,
        )
        for at, (tokens, turns, calls, reward, ending) in enumerate(specs)
    ]
