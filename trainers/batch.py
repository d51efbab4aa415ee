"""What a sampler gives the learner: scored episodes in groups. Flat tensors of them are `packed`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palaestra.episode import Episode


@dataclass(frozen=True, slots=True)
class Scored:
    """An episode with the terms of its training reward."""

    episode: Episode
    terms: Mapping[str, float] | None = None
    """None where there are none, for its `fault`: such an episode is dropped, never counted as 0."""
    remarks: Mapping[str, Any] = field(default_factory=dict)
    """What a judge said beside its terms, such as a critique."""
    fault: str = ""
    """Why there are no terms: it is BROKEN, its reward is no number, or its judge gave up."""

    @property
    def reward(self) -> float:
        """The training reward: what is compared within a group."""
        return sum((self.terms or {}).values())


@dataclass(frozen=True, slots=True)
class Sample:
    """One place of a batch. Two may be of one episode."""

    place: int
    """Of its episode in `Batch.played`."""
    group: int
    """Whose rewards it is compared with, counted from 0 in the batch. A copy has a group of its own."""
    weight: float = 1.0
    """Factor of its advantage: less for a copy."""


@dataclass(frozen=True)
class Batch:
    """What is learned from in one step, and all that was played for it."""

    number: int
    """Which batch of the run, counted from 0."""
    played: tuple[Scored, ...]
    """In order of arrival, also what is not learned from."""
    samples: tuple[Sample, ...]
    state: Mapping[str, Any] = field(default_factory=dict)
    """The sampler's, as it stands before the next batch: what a checkpoint holds."""
    figures: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def scored(self) -> tuple[Scored, ...]:
        """The scored episode of each sample."""
        return tuple(self.played[sample.place] for sample in self.samples)

    @cached_property
    def episodes(self) -> tuple[Episode, ...]:
        """The episode of each sample."""
        return tuple(scored.episode for scored in self.scored)

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """The training reward of each sample."""
        return np.array([scored.reward for scored in self.scored], np.float64)

    @cached_property
    def groups(self) -> NDArray[np.int_]:
        """The group of each sample."""
        return np.array([sample.group for sample in self.samples], np.int_)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Sampled tokens of each sample."""
        return tuple(episode.sampled_tokens for episode in self.episodes)

    def mini_batches(self, count: int) -> list[list[int]]:
        """The samples in at most so many parts, groups kept whole."""
        groups = np.unique(self.groups)
        parts = np.array_split(groups, min(count, len(groups))) if len(groups) else []
        return [np.flatnonzero(np.isin(self.groups, part)).tolist() for part in parts]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the learner thinks of a batch before it learns from it: an array a sample, over its sampled tokens."""

    reference: tuple[NDArray[np.float32], ...] | None = None
    """Log-probs under the policy that KL is measured from; None where the recipe has no KL."""
    old: tuple[NDArray[np.float32], ...] | None = None
    """Log-probs under the learner itself, before it learns; None where the recipe corrects nothing."""
    costs: tuple[NDArray[np.float64], ...] | None = None
    """What each token costs where the KL is charged to the reward; None where it is not."""
    values: tuple[NDArray[np.float32], ...] | None = None
    """What the critic expects of the rest of an episode, before each sampled token; None without a critic."""
