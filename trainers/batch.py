"""A batch of scored episodes in groups, which a sampler builds. `learn.packing` turns it into flat tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.causes import BROKEN, Causes
from palaestra.episode import Episode


@dataclass(frozen=True, slots=True)
class Scored:
    """An episode with the terms of its training reward."""

    episode: Episode
    terms: Mapping[str, float] | None = None
    """Terms of the training reward by name. None if there are none (see `fault`): such an episode is dropped, never
    counted as 0."""
    remarks: Mapping[str, Any] = field(default_factory=dict)
    """Output of a judge besides its terms, such as a critique."""
    fault: str = ""
    """Reason why there are no terms: the episode is BROKEN, its reward is not a number, or its judge gave
    no verdict."""

    @property
    def reward(self) -> float:
        """Return the training reward: the sum of the terms. Rewards are compared within a group."""
        return sum((self.terms or {}).values())


@dataclass(frozen=True, slots=True)
class Sample:
    """One entry of a batch, which refers to an episode. Two samples may refer to the same episode."""

    place: int
    """Index of the episode in `Batch.rollouts`."""
    group: int
    """Index of the group, from 0 within the batch. A copied group has its own index."""
    weight: float = 1.0
    """Factor of the sample's advantage: below 1 for a copy."""


@dataclass(frozen=True)
class Batch:
    """The samples that one step trains on, and all episodes that were played for it."""

    number: int
    """Number of the batch in the run, from 0."""
    rollouts: tuple[Scored, ...]
    """All scored episodes in order of arrival, including those that are not trained on."""
    samples: tuple[Sample, ...]
    state: Mapping[str, Any] = field(default_factory=dict)
    """State of the sampler before the next batch, which a checkpoint holds."""
    figures: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def scored(self) -> tuple[Scored, ...]:
        """Return the scored episode of each sample."""
        return tuple(self.rollouts[sample.place] for sample in self.samples)

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """Return the episode of each sample."""
        return tuple(scored.episode for scored in self.scored)

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """Return the training reward of each sample."""
        return np.array([scored.reward for scored in self.scored], np.float64)

    @cached_property
    def groups(self) -> NDArray[np.int_]:
        """Return the group index of each sample."""
        return np.array([sample.group for sample in self.samples], np.int_)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Return the number of sampled tokens of each sample."""
        return tuple(episode.sampled_tokens for episode in self.episodes)

    @property
    def causes(self) -> Causes:
        """Return why episodes have no terms, and which errors harnesses raised."""
        causes = Causes()
        for scored in self.rollouts:
            if scored.terms is None:
                causes.add(BROKEN, scored.fault)
            else:
                causes.add_episode(scored.episode)
        return causes

    def mini_batches(self, count: int) -> list[list[int]]:
        """Split the sample indices into at most `count` mini-batches without dividing a group."""
        groups = np.unique(self.groups)
        parts = np.array_split(groups, min(count, len(groups))) if len(groups) else []
        return [np.flatnonzero(np.isin(self.groups, part)).tolist() for part in parts]


@dataclass(frozen=True, slots=True)
class BatchScores:
    """Scores of a batch before the update: one array per sample, over its sampled tokens."""

    reference: tuple[NDArray[np.float32], ...] | None = None
    """Log-probs under the reference policy of the KL; None if the recipe has no KL."""
    old: tuple[NDArray[np.float32], ...] | None = None
    """Log-probs under the learner before the update; None if the recipe has no correction."""
    costs: tuple[NDArray[np.float64], ...] | None = None
    """KL cost of each token if the KL is charged to the reward; otherwise None."""
    values: tuple[NDArray[np.float32], ...] | None = None
    """Values that the critic predicts before each sampled token; None without a critic."""
