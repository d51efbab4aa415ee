"""The training reward in stages (PRS, arXiv 2512.07478), for any environment: calls that parse, calls that are valid,
an answer in its form, and then how good it is.

A stage counts once those before it are perfect, so that a model which hardly ever succeeds still has something to
compare. With `curriculum` the weights move from form to quality as more episodes reach the last stage; the only state
is that share, which is in the checkpoint. Left out: what the stages measure (`palaestra.stages`), and environments that
declare stages of their own (`envs.rewards.progressive`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from palaestra.episode import Episode
from palaestra.errors import ConfigError
from palaestra.stages import counted, formatted_answer, parsed_calls, valid_calls
from palaestra.trainers.batch import Batch
from palaestra.trainers.checked import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, check_fields

STAGES = ("stage_parsed", "stage_valid", "stage_format", "stage_quality")
EARLY, LATE = (0.3, 0.2, 0.2, 0.3), (0.05, 0.05, 0.05, 0.85)
"""The weights of a curriculum while no episode reaches the last stage, and when all do."""
_REACHED = "share_reaching_quality"


@dataclass(frozen=True, slots=True)
class Progressive:
    """The stages of an episode's training reward, from 0 to 1 together. A weight of 0 leaves its stage out."""

    max_completion_length: Annotated[int, COUNT] = 20_480
    """Longest response in tokens."""
    parse_weight: Annotated[float, NOT_NEGATIVE] = 0.1
    """Share of calls that could be read."""
    call_weight: Annotated[float, NOT_NEGATIVE] = 0.1
    """Share of calls to a tool that exists, with arguments that it takes."""
    format_weight: Annotated[float, NOT_NEGATIVE] = 0.1
    """An answer with the mark in it, once, that the task asks for: "Answer:", a box, <answer>; else any answer."""
    quality_weight: Annotated[float, POSITIVE] = 0.7
    """How good the answer is. Weights count by their share of all."""
    calls_required: bool = False
    """Whether an episode without a call fails its first stage, where there are tools."""
    quality_part: str = ""
    """The part of the environment's reward that is the quality; by default `quality`, or success without one."""
    binary: bool = False
    """Pay for success alone, 1 or 0: what the paper compares with."""
    curriculum: bool = False
    """Move the weights with the share of episodes that reach the last stage. A changing reward compares with nothing,
    so success is what to look at."""
    curriculum_decay: Annotated[float, BELOW_ONE] = 0.9
    """Of the moving average of that share, by steps."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.binary and self.curriculum:
            raise ConfigError("binary and curriculum are both True; a reward of success alone has no weights to move")

    def __call__(self, episode: Episode, reached: float = 0.0) -> Mapping[str, float]:
        """The terms of an episode that has a reward; `reached` is how far the curriculum has come."""
        if self.binary:
            return {"outcome": float(episode.parts["success"] >= 1)}
        weights, scores = self.weights(reached), self.scores(episode)
        names = [name for name in STAGES if weights[name]]
        paid = counted([scores[name] for name in names], [1.0] * len(names))
        return {name: weights[name] * score for name, score in zip(names, paid, strict=True)}

    def weights(self, reached: float = 0.0) -> dict[str, float]:
        """Of each stage, 1 in all."""
        own = np.array([self.parse_weight, self.call_weight, self.format_weight, self.quality_weight])
        if self.curriculum:
            own = np.where(own > 0, (1 - reached) * np.array(EARLY) + reached * np.array(LATE), 0.0)
        return {name: float(weight) for name, weight in zip(STAGES, own / own.sum(), strict=True)}

    def scores(self, episode: Episode) -> dict[str, float]:
        """What each stage measures, whether or not it counts."""
        attempt, required = episode.attempt, self.calls_required and bool(episode.tools)
        part = self.quality_part or ("quality" if "quality" in episode.parts else "success")
        if part not in episode.parts:
            raise ConfigError(f"quality_part is {part!r}; expected a part of the reward: {', '.join(episode.parts)}")
        measured = parsed_calls(attempt, required), valid_calls(attempt, required), formatted_answer(attempt)
        return dict(zip(STAGES, (*measured, float(np.clip(episode.parts[part], 0, 1))), strict=True))

    def reaches_quality(self, episode: Episode) -> bool:
        """Whether the stages before the last are perfect."""
        scores, weights = self.scores(episode), self.weights()
        return all(scores[name] >= 1 for name in STAGES[:-1] if weights[name])


@dataclass(slots=True)
class Fixed:
    """Terms that do not change during a run."""

    terms: Callable[[Episode], Mapping[str, float]]

    def __call__(self, episode: Episode) -> Mapping[str, float]:
        """The terms of an episode that has a reward."""
        return self.terms(episode)

    def after(self, batch: Batch) -> Mapping[str, Any]:
        """What a checkpoint holds: the sampler's state."""
        return batch.state


@dataclass(slots=True)
class Curriculum:
    """`Progressive` with weights that move from batch to batch. Members of a group always have the same ones."""

    options: Progressive
    reached: float = 0.0
    _of_groups: dict[int, float] = field(default_factory=dict)
    """How far it had come when the first member of a group was scored: groups may be played ahead."""

    def __call__(self, episode: Episode) -> Mapping[str, float]:
        """The terms of an episode that has a reward."""
        return self.options(episode, self._of_groups.setdefault(episode.start.group, self.reached))

    def after(self, batch: Batch) -> Mapping[str, Any]:
        """Hear of a batch. What a checkpoint then holds: the sampler's state, and how far this has come."""
        scored = [one.episode for one in batch.played if one.terms is not None]
        if scored:
            share = float(np.mean([self.options.reaches_quality(episode) for episode in scored]))
            decay = self.options.curriculum_decay
            self.reached = decay * self.reached + (1 - decay) * share
        for one in batch.played:
            self._of_groups.pop(one.episode.start.group, None)
        return {**batch.state, _REACHED: self.reached}


def opened(shaping: Callable[[Episode], Mapping[str, float]], state: Mapping[str, Any]) -> Fixed | Curriculum:
    """The terms of a run, which goes on from that state of a checkpoint."""
    if isinstance(shaping, Progressive) and shaping.curriculum:
        return Curriculum(shaping, float(state.get(_REACHED, 0.0)))
    return Fixed(shaping)
