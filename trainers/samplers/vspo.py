"""VSPO: groups of low value are replaced by copies of groups of high value (arXiv 2512.07478).

The value of a group is `(1 - mean) * deviation` of its outcomes: high for a hard task that does not always fail. The
paper's formulas are not public, so this module uses the definitions in docs/papers.md. No group is played twice: a copy
has the same episodes and its own group index, and each further copy has a smaller weight.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from palaestra.trainers.batch import Batch, Sample
from palaestra.trainers.samplers.group_sampler import Compared, Groups, InOrder, compared_values
from palaestra.trainers.samplers.sampler import TaskDraw
from palaestra.trainers.samplers.task_of_group import TaskCount, evenly
from palaestra.trainers.validation import COUNT, NOT_NEGATIVE, check_fields


@dataclass(frozen=True, slots=True)
class VSPO:
    """Settings of VSPO, which replaces groups of low value within a batch. The paper's ablation varies these."""

    refill: Literal["value", "random", "left-out", "none"] = "value"
    """Replacement of low-value groups: copies drawn by value, copies drawn at random, or nothing (`left-out`); `none`
    keeps these groups, as GRPO does."""
    damping: Literal["geometric", "inverse-root", "none"] = "geometric"
    """Weight of the entries of a group (itself and its copies): `gamma^j` for the j-th copy, `1 / sqrt(m)` for each of
    `m` entries, or 1."""
    copy_gamma: Annotated[float, Field(gt=0, le=1)] = 0.5
    """gamma of the geometric damping: a group weighs less than `1 / (1 - gamma)` with all its copies."""
    max_copies: Annotated[int | None, COUNT] = 4
    """Maximum number of copies of a group, the original not counted; None means no limit."""
    low_value: Annotated[float, NOT_NEGATIVE] = 0.0
    """Groups of this value or less are replaced; 0 replaces only groups of value 0 (v2 of the paper), more gives v1."""
    value_spread: Literal["deviation", "variance"] = "deviation"
    """Measure of uncertainty within a group: population standard deviation or variance of the outcomes."""
    compared: Compared = "reward"
    """Value whose mean and deviation count: success, or the training reward, scaled to 0 and 1 by the terms' range."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> "Refilling":
        """Return a sampler for an environment or for a mixture."""
        return Refilling(evenly(env, task_count, groups.num_prompts, seed), groups, self, seed)

    def value(self, outcomes: NDArray[np.float64], best: float = 1.0) -> float:
        """Return the value of a group with these outcomes; 0 if they are all equal."""
        if len(outcomes) < 2 or np.ptp(outcomes) == 0:  # Rounding can leave a deviation above zero.
            return 0.0
        spread = outcomes.std() if self.value_spread == "deviation" else outcomes.var()
        return float(max(0.0, best - outcomes.mean()) * spread)


class Refilling(InOrder):
    """Sampler of groups in order that replaces the low-value groups of a batch by copies of other groups."""

    def __init__(self, draw: TaskDraw, groups: Groups, options: VSPO, seed: int) -> None:
        self._options, self._seed = options, seed
        super().__init__(draw, groups)

    def batch(self) -> Batch | None:
        """Return the batch with its low-value groups replaced. If all groups are of low value, it has no samples."""
        batch = super().batch()
        if batch is None or self._options.refill == "none":
            return batch
        members: dict[int, list[int]] = {}
        for sample in batch.samples:
            members.setdefault(sample.group, []).append(sample.place)
        values = self._values(batch, members)
        kept_groups = [group for group, value in values.items() if value > self._options.low_value]
        copies = self._draw_copies(
            batch.number, {group: values[group] for group in kept_groups}, len(members) - len(kept_groups)
        )
        samples = list[Sample]()
        for number, (group, weight) in enumerate(self._weighed(kept_groups, copies)):
            samples += [Sample(place, number, weight) for place in members[group]]
        group_weights = [
            sum(weight for copied, weight in self._weighed(kept_groups, copies) if copied == group)
            for group in kept_groups
        ]
        figures = {
            "sampler/dead_share": 1 - len(kept_groups) / max(1, len(members)),
            "sampler/copies": float(len(copies)),
            **{
                f"sampler/copied/{times}": float(count) for times, count in self._histogram(kept_groups, copies).items()
            },
            "sampler/largest_share": max(group_weights, default=0.0) / max(1e-9, sum(group_weights)),
            "sampler/mean_value": float(np.mean(list(values.values()) or [0.0])),
        }
        return replace(batch, samples=tuple(samples), figures={**batch.figures, **figures})

    def _values(self, batch: Batch, members: Mapping[int, Sequence[int]]) -> dict[int, float]:
        """Return the value of each group. Training rewards are first rescaled to the range of success.

        If a reward lies outside the declared range of the terms, the range is widened, so that no group with different
        outcomes has value 0.
        """
        outcomes: dict[int, NDArray[np.float64]] = {}
        for group, places in members.items():
            values_by_seat = compared_values([batch.rollouts[place] for place in places], self._options.compared)
            outcomes[group] = np.array([value for values in values_by_seat.values() for value in values], np.float64)
        declared = None if self._options.compared == "success" else self.groups.reward_range
        every = np.concatenate([declared or (0.0, 1.0), *outcomes.values()])
        low, high = every.min(), every.max()
        return {
            group: self._options.value((group_outcomes - low) / (high - low))
            for group, group_outcomes in outcomes.items()
        }

    def _histogram(self, kept_groups: Sequence[int], copies: Sequence[int]) -> dict[int, int]:
        """Return for 0, 1, ... up to the maximum number of copies, how many of the kept groups have so many copies."""
        times = Counter(Counter(copies)[group] for group in kept_groups)
        max_copies = self._options.max_copies
        return {
            count: times[count] for count in range((max(times, default=0) if max_copies is None else max_copies) + 1)
        }

    def _draw_copies(self, number: int, values: dict[int, float], count: int) -> list[int]:
        """Return the groups to copy, in sampling order. The result depends only on the seed and the batch number."""
        if self._options.refill == "left-out":
            return []
        rng, chosen, max_copies = np.random.default_rng([self._seed, number, 3]), list[int](), self._options.max_copies
        left = {group: value if self._options.refill == "value" else 1.0 for group, value in values.items()}
        for _ in range(count):
            if not left:  # Every group has its largest number of copies, so the batch is smaller.
                break
            chances = np.array(list(left.values()))
            group = list(left)[int(rng.choice(len(left), p=chances / chances.sum()))]
            chosen.append(group)
            if max_copies is not None and chosen.count(group) >= max_copies:
                del left[group]
        return chosen

    def _weighed(self, kept_groups: Sequence[int], copies: Sequence[int]) -> list[tuple[int, float]]:
        """Return each kept group and each copy, as pairs of group number and weight."""
        totals, copies_so_far, weighted_groups = (
            Counter([*kept_groups, *copies]),
            Counter[int](),
            list[tuple[int, float]](),
        )
        for group in (*kept_groups, *copies):
            damping = self._options.damping
            weight = {
                "geometric": self._options.copy_gamma ** copies_so_far[group],
                "inverse-root": totals[group] ** -0.5,
            }
            weighted_groups.append((group, weight.get(damping, 1.0)))
            copies_so_far[group] += 1
        return weighted_groups
