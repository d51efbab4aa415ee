"""Checks of groups, of what their baselines are made of, and of the advantages that come of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Ending
from palaestra.trainers.audit.findings import Finding, place_of
from palaestra.trainers.batch import Batch, Scored, Seen
from palaestra.trainers.losses.advantages import Advantages, Floats, Group, LeaveOneOut, OptimalBaseline, returns
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
        elif (
            place not in taught
            and not (lacks or episode.fault or episode.start.greedy)
            and episode.start.group in groups
        ):
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
    order_E = np.lexsort((rewards_E, batch.groups))
    begins = np.flatnonzero(np.diff(batch.groups[order_E], prepend=-1))
    sizes = np.diff(begins, append=len(order_E))
    rewards_E, found_E = rewards_E[order_E], np.asarray(values, np.float64)[order_E]
    wrong_E = _wrong(advantage, rewards_E, found_E, begins, sizes)
    for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
        own = slice(begin, begin + size)
        if wrong_E[own].any():
            first = place_of(batch.episodes[order_E[begin]])
            told = f"the rewards {_listed(rewards_E[own])} have the advantages {_listed(found_E[own])}"
            yield Finding("advantages", f"the group of the {first}", told)


def _wrong(
    advantage: Any, rewards_E: Floats, found_E: Floats, begins: NDArray[np.int_], sizes: NDArray[np.int_]
) -> NDArray[np.bool_]:
    """Which advantages cannot be; within their groups the rewards are in rising order."""

    def mean(values_E: Floats) -> Floats:
        found: Floats = np.repeat(np.add.reduceat(values_E, begins) / sizes, sizes)
        return found

    counts_E = np.repeat(sizes, sizes)
    equal_E = np.repeat(rewards_E[begins] == rewards_E[begins + sizes - 1], sizes)
    wrong_E: NDArray[np.bool_] = equal_E & (found_E != 0)
    rises_E, better_E = np.diff(rewards_E, prepend=rewards_E[:1]), np.diff(found_E, prepend=found_E[:1])
    falls_E = ((rises_E > _CLOSE) & (better_E <= 0)) | ((rises_E == 0) & (np.abs(better_E) > _CLOSE))
    falls_E[begins] = False
    wrong_E |= falls_E
    centred_E = rewards_E - mean(rewards_E)
    if isinstance(advantage, LeaveOneOut):
        expected_E = centred_E * counts_E / np.maximum(counts_E - 1, 1)
    elif isinstance(advantage, Group) and advantage.scale_rewards == "none":
        expected_E = centred_E
    elif isinstance(advantage, Group) and advantage.scale_rewards == "group":
        variance_E = mean(centred_E**2) * counts_E / np.maximum(counts_E - 1, 1)
        expected_E = centred_E / (np.sqrt(variance_E) + _EPSILON)
    else:
        return wrong_E
    wrong_E |= ~equal_E & (np.abs(found_E - expected_E) > 1e-4 * np.abs(expected_E) + _CLOSE)
    return wrong_E


def _listed(values: Sequence[float] | NDArray[np.float64]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:6])
    return f"[{shown}{', ...' if len(values) > 6 else ''}]"
