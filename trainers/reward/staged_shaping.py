"""A training reward of four stages (PRS, arXiv 2512.07478), for any environment: calls that parse, valid calls, an
answer in the right format, and the quality of the answer.

A stage counts only if all stages before it are perfect. So the rewards differ even if the model hardly ever succeeds.
With `curriculum`, the weight of the quality rises as more episodes reach the last stage; a moving average of their
share is the only state, and the checkpoint holds it. Left out: how a stage is measured (`palaestra.stages`), and
environments that declare their own stages (`envs.rewards.progressive`).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from palaestra.episode import Episode
from palaestra.errors import ConfigError
from palaestra.stages import counted, formatted_answer, parsed_calls, valid_calls
from palaestra.trainers.batch import Batch
from palaestra.trainers.validation import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, check_fields

STAGES = ("stage_parsed", "stage_valid", "stage_format", "stage_quality")
EARLY, LATE = (0.3, 0.2, 0.2, 0.3), (0.05, 0.05, 0.05, 0.85)
"""Weights of a curriculum when no episode reaches the last stage, and when all do."""
_REACHED = "share_reaching_quality"


@dataclass(frozen=True, slots=True)
class StagedShaping:
    """The stages of an episode's training reward, whose sum is from 0 to 1. A stage of weight 0 is left out."""

    max_completion_length: Annotated[int, COUNT] = 20_480
    """Longest response in tokens."""
    parse_weight: Annotated[float, NOT_NEGATIVE] = 0.1
    """Weight of the share of calls that could be parsed."""
    call_weight: Annotated[float, NOT_NEGATIVE] = 0.1
    """Weight of the share of calls to an existing tool with valid arguments."""
    format_weight: Annotated[float, NOT_NEGATIVE] = 0.1
    """Weight of the answer's format: the mark that the task asks for ("Answer:", a box, <answer>) occurs exactly once;
    if it asks for none, any answer counts."""
    quality_weight: Annotated[float, POSITIVE] = 0.7
    """Weight of the answer's quality. All weights are divided by their sum."""
    calls_required: bool = False
    """Let an episode without a call fail its first stage, if there are tools."""
    quality_part: str = ""
    """Part of the environment's reward that is the quality; by default `quality`, or success if there is no
    such part."""
    binary: bool = False
    """Reward only success, with 1 or 0: the paper's baseline."""
    curriculum: bool = False
    """Change the weights with the share of episodes that reach the last stage. The reward then changes during the run,
    so compare runs by success."""
    curriculum_decay: Annotated[float, BELOW_ONE] = 0.9
    """Decay per step of the moving average of that share."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.binary and self.curriculum:
            raise ConfigError("binary and curriculum are both True; a reward of success alone has no weights to move")

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return the smallest and the largest possible sum of the terms."""
        return 0.0, 1.0

    def __call__(self, episode: Episode, reached: float = 0.0) -> Mapping[str, float]:
        """Return the terms of an episode that has a reward; `reached` is the progress of the curriculum, 0 to 1."""
        if self.binary:
            return {"outcome": float(episode.parts["success"] >= 1)}
        weights, scores = self.weights(reached), self.scores(episode)
        names = [name for name in STAGES if weights[name]]
        paid = counted([scores[name] for name in names], [1.0] * len(names))
        return {name: weights[name] * score for name, score in zip(names, paid, strict=True)}

    def weights(self, reached: float = 0.0) -> dict[str, float]:
        """Return the weight of each stage; they sum to 1."""
        weights = np.array([self.parse_weight, self.call_weight, self.format_weight, self.quality_weight])
        if self.curriculum:
            weights = np.where(weights > 0, (1 - reached) * np.array(EARLY) + reached * np.array(LATE), 0.0)
        return {name: float(weight) for name, weight in zip(STAGES, weights / weights.sum(), strict=True)}

    def scores(self, episode: Episode) -> dict[str, float]:
        """Return the score of each stage, also of a stage that does not count because an earlier one is not perfect."""
        attempt, required = episode.attempt, self.calls_required and bool(episode.tools)
        part = self.part_of(episode.parts)
        measured = parsed_calls(attempt, required), valid_calls(attempt, required), formatted_answer(attempt)
        return dict(zip(STAGES, (*measured, float(np.clip(episode.parts[part], 0, 1))), strict=True))

    def part_of(self, parts: Collection[str]) -> str:
        """Return the name of the part of the environment's reward that is the quality."""
        part = self.quality_part or ("quality" if "quality" in parts else "success")
        if part not in parts:
            raise ConfigError(f"quality_part is {part!r}; expected a part of the reward: {', '.join(parts)}")
        return part

    def reaches_quality(self, episode: Episode) -> bool:
        """Return whether the episode has the full score in all stages before the last."""
        scores, weights = self.scores(episode), self.weights()
        return all(scores[name] >= 1 for name in STAGES[:-1] if weights[name])


@dataclass(slots=True)
class Fixed:
    """Function that computes an episode's terms in the same way during the whole run."""

    terms: Callable[[Episode], Mapping[str, float]]

    def __call__(self, episode: Episode) -> Mapping[str, float]:
        """Return the terms of an episode that has a reward."""
        return self.terms(episode)

    def after(self, batch: Batch) -> Mapping[str, Any]:
        """Return the state for a checkpoint: the batch's sampler state alone, because these terms have no state."""
        return batch.state


@dataclass(slots=True)
class Curriculum:
    """`StagedShaping` with weights that change after each batch. All members of a group have the same weights."""

    options: StagedShaping
    reached: float = 0.0
    _of_groups: dict[int, float] = field(default_factory=dict)
    """Progress when the first member of a group was scored, by group, because groups may be played ahead."""

    def __call__(self, episode: Episode) -> Mapping[str, float]:
        """Return the terms of an episode that has a reward."""
        return self.options(episode, self._of_groups.setdefault(episode.start.group, self.reached))

    def after(self, batch: Batch) -> Mapping[str, Any]:
        """Update the progress from a batch. Return the state for a checkpoint: the sampler's state and the progress."""
        scored = [member.episode for member in batch.rollouts if member.terms is not None]
        if scored:
            share = float(np.mean([self.options.reaches_quality(episode) for episode in scored]))
            decay = self.options.curriculum_decay
            self.reached = decay * self.reached + (1 - decay) * share
        for member in batch.rollouts:
            self._of_groups.pop(member.episode.start.group, None)
        return {**batch.state, _REACHED: self.reached}


def opened(shaping: Callable[[Episode], Mapping[str, float]], state: Mapping[str, Any]) -> Fixed | Curriculum:
    """Return the function that computes the terms of a run, with the progress from the checkpoint's state."""
    if isinstance(shaping, StagedShaping) and shaping.curriculum:
        return Curriculum(shaping, float(state.get(_REACHED, 0.0)))
    return Fixed(shaping)
