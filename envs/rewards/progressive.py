"""A reward in stages; a stage counts only once all stages before it are cleared.

An agent learns to write calls that parse before it is rewarded for answers, and gets no reward for an answer without
the earlier stages (progressive reward shaping). The paper leaves thresholds and weights open, so an environment
declares them:

    reward = StagedReward(
        RewardStage("parsed", parsed_calls, weight=0.1),
        RewardStage("valid", valid_calls, weight=0.1),
        RewardStage("success", quality, weight=0.8),
    )

These lines in the body of the environment's class declare its reward parts as well. A stage is cleared when its score
reaches its threshold. If every stage is cleared, the reward is the sum of weight times score. Otherwise a cleared stage
counts its threshold, the first stage that is not cleared counts its score, and later stages count nothing. Three things
hold, for any thresholds: clearing one more stage never lowers the reward; an attempt that is stuck at a stage has less
than every attempt that clears it; only perfect scores in all stages give the full reward.

Left out: weights that change during training. They belong to the trainer, because values of a changing reward cannot be
compared.
"""

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.envs.core.scoring import RewardPart, check_declared, is_number
from palaestra.envs.rewards.answer import MARK
from palaestra.episode import Attempt
from palaestra.errors import EnvironmentDefect
from palaestra.stages import counted, formatted_answer, parsed_calls, valid_calls

__all__ = ["RewardStage", "StagedReward", "marked_answer", "parsed_calls", "valid_calls"]

Measure = Callable[[Attempt], float | Awaitable[float]]
_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class RewardStage:
    """One stage: a measure from 0 to 1, its weight, and its threshold, the lowest score that clears it."""

    name: str
    measure: Measure
    """Function of the attempt; an `async def` (a judge) is called only when the stages before are cleared."""
    weight: float
    threshold: float = 1.0

    def __post_init__(self) -> None:
        if not callable(self.measure):
            raise EnvironmentDefect(f"Stage {self.name!r} measures by {self.measure!r}; expected a function")
        if not (is_number(self.weight) and self.weight > 0):
            raise EnvironmentDefect(
                f"Stage {self.name!r} has weight {self.weight!r}; expected a positive, finite number"
            )
        if not (is_number(self.threshold) and 0 < self.threshold <= 1):
            raise EnvironmentDefect(
                f"Stage {self.name!r} has threshold {self.threshold!r}; expected a number above 0, at most 1"
            )


class StagedReward:
    """A reward made of stages, for an environment's `reward`; the last stage is called "success"."""

    def __init__(self, *stages: RewardStage) -> None:
        names = [stage.name for stage in stages]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise EnvironmentDefect(f"StagedReward has two stages named {twice!r}; rename one")
        if not names or names[-1] != "success":
            raise EnvironmentDefect(
                f"the last stage of StagedReward is {names[-1] if names else 'missing'!r}; "
                "name the stage that measures success 'success' and put it last"
            )
        self.stages = stages
        self.parts: Mapping[str, RewardPart] = {stage.name: RewardPart(weight=stage.weight) for stage in stages}
        """Stages as reward parts; a class whose `reward` this is has them as its `parts`."""
        check_declared("StagedReward", self.parts)
        self.waits = any(_is_async(stage.measure) for stage in stages)
        """True where a stage asks a judge, so that the reward has to be awaited."""

    def __repr__(self) -> str:
        return f"StagedReward({', '.join(f'{s.name} x {s.weight:g} from {s.threshold:g} on' for s in self.stages)})"

    def __call__(self, attempt: Attempt) -> Any:
        """Return every stage's part of the reward; this is an awaitable if a stage's measure is an `async def`."""
        return self._judged(attempt) if self.waits else self._measured(attempt)

    async def explain(self, attempt: Attempt) -> str:
        """Return a text for a person that names the stages that were not reached (`ToolEnv.explain`).

        It calls the measures again.
        """
        returned = self(attempt)
        values = await returned if self.waits else returned
        names = [stage.name for stage in self.stages]
        for at, stage in enumerate(self.stages[:-1], start=1):
            if values[stage.name] < stage.threshold:
                wants = f"{stage.name} is {values[stage.name]:g} and needs {stage.threshold:g}"
                return f"not reached: {', '.join(names[at:])}, since {wants}"
        return ""

    def _measured(self, attempt: Attempt) -> dict[str, float]:
        scores: list[float] = []
        for stage in self.stages:
            scores.append(_checked(stage, stage.measure(attempt)))
            if scores[-1] < stage.threshold:
                break
        return self._counted(scores)

    async def _judged(self, attempt: Attempt) -> dict[str, float]:
        scores: list[float] = []
        for stage in self.stages:
            measured = stage.measure(attempt)
            scores.append(_checked(stage, await measured if inspect.isawaitable(measured) else measured))
            if scores[-1] < stage.threshold:
                break
        return self._counted(scores)

    def _counted(self, scores: Sequence[float]) -> dict[str, float]:
        """Return the values of all parts. `scores` are those of the stages up to the first that is not cleared."""
        return dict(zip(self.parts, counted(scores, [stage.threshold for stage in self.stages]), strict=True))


def _is_async(measure: Measure) -> bool:
    return inspect.iscoroutinefunction(measure) or inspect.iscoroutinefunction(type(measure).__call__)


def _checked(stage: RewardStage, value: Any) -> float:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise EnvironmentDefect(f"stage {stage.name!r} measured something to await; write its measure as an async def")
    try:
        if isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not -_SLACK <= number <= 1 + _SLACK:  # NaN too.
        raise EnvironmentDefect(f"stage {stage.name!r} measured {value!r}; expected a number from 0 to 1")
    if stage.threshold - _SLACK <= number < stage.threshold:  # Ten tenths, added up, are a little less than one.
        return stage.threshold
    return min(max(number, 0.0), 1.0)


def marked_answer(attempt: Attempt) -> float:
    """Return 1 if the answer contains "Answer:" exactly once, else 0."""
    return formatted_answer(attempt, MARK)
