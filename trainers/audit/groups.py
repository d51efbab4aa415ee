"""Checks of groups, and of the members that their baselines are computed from. Left out: the advantages."""

from collections.abc import Iterator

import numpy as np

from palaestra.episode import Ending
from palaestra.trainers.audit.audit_findings import AuditFinding, place_of
from palaestra.trainers.batch import Batch, Scored


def group_findings(batch: Batch) -> Iterator[AuditFinding]:
    """Check that a group has attempts of one seat at one task with one prompt, and no attempt twice."""
    members: dict[int, list[Scored]] = {}
    for sample, scored in zip(batch.samples, batch.scored, strict=True):
        members.setdefault(sample.group, []).append(scored)
    for group, group_members in members.items():
        starts = [scored.episode.start for scored in group_members]
        alike: dict[str, set[object]] = {
            "numbers of groups": {start.group for start in starts},
            "tasks": {(start.env, start.task, start.seat) for start in starts},
            "prompts": {scored.episode.attempt.task.prompt for scored in group_members},
        }
        mixed = [f"{len(values)} {what}" for what, values in alike.items() if len(values) > 1]
        if len({id(scored.episode) for scored in group_members}) < len(group_members):
            mixed.append("an episode more than once")
        if mixed:
            details = f"its {len(group_members)} members have {', '.join(mixed)}"
            yield AuditFinding("groups", f"group {group} of the batch", details)


def member_findings(batch: Batch) -> Iterator[AuditFinding]:
    """Check that exactly the rewarded episodes of a group are samples: BROKEN and faulty ones must not be."""
    trained_places = {sample.place for sample in batch.samples}
    groups = {batch.rollouts[place].episode.start.group for place in trained_places}
    for place, scored in enumerate(batch.rollouts):
        episode = scored.episode
        broken = scored.terms is None or episode.reward is None or episode.ending is Ending.BROKEN
        unfit, is_trained = broken or bool(episode.fault), place in trained_places
        if is_trained and (unfit or not np.isfinite(scored.reward)):
            fault = scored.fault or episode.fault
            details = f"it is a sample: {episode.ending}, reward {episode.reward}, fault {fault!r}"
        elif not (is_trained or unfit or episode.start.greedy) and episode.start.group in groups:
            details = f"it has the reward {episode.reward}, and is no sample of its group"
        else:
            continue
        yield AuditFinding("members", place_of(episode), details)
