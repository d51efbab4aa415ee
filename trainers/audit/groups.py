"""Checks of groups, of what their baselines are made of, and of the advantages that come of them."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Ending
from palaestra.trainers.audit.findings import Finding, place_of
from palaestra.trainers.batch import Batch, Scored, Seen
from palaestra.trainers.losses.advantages import Advantages, Group, LeaveOneOut, OptimalBaseline, returns
from palaestra.trainers.recipes import Recipe

_EPSILON = 1e-6
_CLOSE = 1e-6


def group_findings(batch: Batch) -> Iterator[Finding]:
    """A group is attempts of one seat at one task by one prompt, no attempt twice, and no other group's."""
    members: dict[int, list[Scored]] = {}
    for sample, scored in zip(batch.samples, batch.scored, strict=True):
        members.setdefault(sample.group, []).append(scored)
    for group, own in members.items():
        starts = [scored.episode.start for scored in own]
        alike: dict[str, set[object]] = {
            "numbers of groups": {start.group for start in starts},
            "tasks": {(start.env, start.task, start.seat) for start in starts},
            "prompts": {scored.episode.attempt.task.prompt for scored in own},
        }
        mixed = [f"{len(found)} {what}" for what, found in alike.items() if len(found) > 1]
        if len({id(scored.episode) for scored in own}) < len(own):
            mixed.append("an episode more than once")
        if mixed:
            yield Finding("groups", f"group {group} of the batch", f"its {len(own)} members have {', '.join(mixed)}")


def member_findings(batch: Batch) -> Iterator[Finding]:
    """All of a group that has a reward is compared, and nothing else: BROKEN and masked episodes move no baseline."""
    taught = {sample.place for sample in batch.samples}
    groups = {batch.played[place].episode.start.group for place in taught}
    for place, scored in enumerate(batch.played):
        episode = scored.episode
        lacks = scored.terms is None or episode.reward is None or episode.ending is Ending.BROKEN
        if place in taught and (lacks or episode.fault or not np.isfinite(scored.reward)):
            fault = scored.fault or episode.fault
            found = f"it is a sample: {episode.ending}, reward {episode.reward}, fault {fault!r}"
        elif place not in taught and not lacks and not episode.fault and episode.start.group in groups:
            found = f"it has the reward {episode.reward}, and is no sample of its group"
        else:
            continue
        yield Finding("members", place_of(episode), found)


def advantage_findings(recipe: Recipe, batch: Batch, seen: Seen, values: Advantages) -> Iterator[Finding]:
    """Advantages are numbers, one a sample or one a token; those of a baseline follow the order of the rewards.

    Where the recipe's has a closed form within the group, they are that.
    """
    if len(values) != len(batch.samples):
        yield Finding("advantages", "the batch", f"{len(values)} advantages for {len(batch.samples)} samples")
        return
    for scored, value, length in zip(batch.scored, values, batch.lengths, strict=True):
        known = np.atleast_1d(value)
        if not np.isfinite(known).all() or (np.ndim(value) and len(known) != length):
            found = f"{len(known)} advantages for {length} tokens, {int((~np.isfinite(known)).sum())} no numbers"
            yield Finding("advantages", place_of(scored.episode), found)
            return
    advantage = recipe.advantage
    if not isinstance(advantage, Group | LeaveOneOut | OptimalBaseline) or not batch.samples:
        return
    rewards_E = returns(batch, seen) if recipe.kl.kl_in_reward else batch.rewards
    advantages_E = np.asarray(values, np.float64)
    order_E = np.lexsort((rewards_E, batch.groups))
    bounds = np.flatnonzero(np.diff(batch.groups[order_E], prepend=-1, append=-1))
    for begin, end in pairwise(bounds.tolist()):
        own = order_E[begin:end]
        if wrong := _wrong(advantage, rewards_E[own], advantages_E[own]):
            first = place_of(batch.episodes[own[0]])
            yield Finding("advantages", f"the group of the {first}", wrong)


def _wrong(advantage: Any, rewards_G: NDArray[np.float64], found_G: NDArray[np.float64]) -> str:
    """What is wrong with a group's advantages; its rewards are in rising order."""
    told = f"the rewards {_listed(rewards_G)} have the advantages {_listed(found_G)}"
    if rewards_G[0] == rewards_G[-1]:
        return f"{told}; expected zeros" if found_G.any() else ""
    rises, better = np.diff(rewards_G), np.diff(found_G)
    if ((rises > _CLOSE) & (better <= 0)).any() or ((rises == 0) & (np.abs(better) > _CLOSE)).any():
        return f"{told}; expected a higher one for a higher reward"
    centred_G, expected_G = rewards_G - rewards_G.mean(), None
    if isinstance(advantage, LeaveOneOut):
        expected_G = centred_G * len(centred_G) / (len(centred_G) - 1)
    elif isinstance(advantage, Group) and advantage.scale_rewards != "batch":
        expected_G = centred_G
        if advantage.scale_rewards == "group":
            expected_G = centred_G / ((centred_G @ centred_G / (len(centred_G) - 1)) ** 0.5 + _EPSILON)
    if expected_G is None or (np.abs(found_G - expected_G) <= 1e-4 * np.abs(expected_G) + _CLOSE).all():
        return ""
    return f"{told}; expected {_listed(expected_G)}"


def _listed(values: Sequence[float] | NDArray[np.float64]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:6])
    return f"[{shown}{', ...' if len(values) > 6 else ''}]"
