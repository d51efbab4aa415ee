"""VSPO: groups that teach nothing are replaced by copies of those that are worth most (arXiv 2512.07478).

A task's value is `(1 - mean) * deviation` of its group: hard, and not always failed. The paper's formulas are not
public; these are the definitions of docs/papers.md. Nothing is played again: a copy is the same episodes in a group of
its own, and each further copy counts less.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from palaestra.trainers.batch import Batch, Sample
from palaestra.trainers.checked import COUNT, NOT_NEGATIVE, check_fields
from palaestra.trainers.sampling.draws import TaskCount, evenly
from palaestra.trainers.sampling.in_order import Compared, Groups, InOrder, compared_values
from palaestra.trainers.sampling.sampler import Draw


@dataclass(frozen=True, slots=True)
class Value:
    """Dead groups are replaced within the batch. The switches are those of the paper's ablation."""

    refill: Literal["value", "random", "left-out", "none"] = "value"
    """How groups that teach nothing are replaced: by value, at random, by nothing; `none` leaves them in, as GRPO."""
    damping: Literal["geometric", "inverse-root", "none"] = "geometric"
    """How a copy counts less: the j-th by `gamma^j`, all `m` of a group by `1 / sqrt(m)`, or not at all."""
    copy_gamma: Annotated[float, Field(gt=0, le=1)] = 0.5
    """gamma of the geometric damping: a group weighs less than `1 / (1 - gamma)` with all its copies."""
    max_copies: Annotated[int | None, COUNT] = 4
    """Copies of a group, itself not counted; none for any number."""
    low_value: Annotated[float, NOT_NEGATIVE] = 0.0
    """Groups of this value or less are replaced; 0 for those without any (v2 of the paper), more for v1."""
    value_spread: Literal["deviation", "variance"] = "deviation"
    """What of a group stands for uncertainty; the population's."""
    compared: Compared = "reward"
    """Whose mean and deviation: the training reward's, scaled from its range to 0 and 1, or success."""
    worst_reward: Annotated[float, Field(lt=1)] = -1.0
    """Training reward of a failure, where the best is 1: -1 of an outcome, 0 of progressive rewards."""

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, env: str, task_count: TaskCount, groups: Groups, seed: int = 0) -> "Refilling":
        """A sampler, as `Uniform` makes one."""
        return Refilling(evenly(env, task_count, groups.num_prompts, seed), groups, self, seed)

    def value(self, outcomes: NDArray[np.float64], best: float = 1.0) -> float:
        """What a group of these outcomes is worth."""
        if len(outcomes) < 2 or np.ptp(outcomes) == 0:  # Compared: rounding can leave a deviation above zero.
            return 0.0
        spread = outcomes.std() if self.value_spread == "deviation" else outcomes.var()
        return float(max(0.0, best - outcomes.mean()) * spread)


class Refilling(InOrder):
    """Groups in order; what a batch lacks is filled up with copies."""

    def __init__(self, draw: Draw, groups: Groups, options: Value, seed: int) -> None:
        self._options, self._seed = options, seed
        super().__init__(draw, groups)

    def batch(self) -> Batch | None:
        """The batch, with its dead groups replaced. Where all are dead it has no samples."""
        played = super().batch()
        if played is None or self._options.refill == "none":
            return played
        members: dict[int, list[int]] = {}
        for sample in played.samples:
            members.setdefault(sample.group, []).append(sample.place)
        values = {group: self._value(played, places) for group, places in members.items()}
        kept = [group for group, value in values.items() if value > self._options.low_value]
        copies = self._drawn(played.number, {group: values[group] for group in kept}, len(members) - len(kept))
        samples = list[Sample]()
        for number, (group, weight) in enumerate(self._weighed(kept, copies)):
            samples += [Sample(place, number, weight) for place in members[group]]
        own = [sum(weight for one, weight in self._weighed(kept, copies) if one == group) for group in kept]
        figures = {
            "sampler/dead_share": 1 - len(kept) / max(1, len(members)),
            "sampler/copies": float(len(copies)),
            "sampler/most_copies": float(max(Counter(copies).values(), default=0)),
            "sampler/largest_share": max(own, default=0.0) / max(1e-9, sum(own)),
            "sampler/mean_value": float(np.mean(list(values.values()) or [0.0])),
        }
        return replace(played, samples=tuple(samples), figures={**played.figures, **figures})

    def _value(self, batch: Batch, places: Sequence[int]) -> float:
        """Of a group; a training reward is scaled as a success is."""
        found = compared_values([batch.played[place] for place in places], self._options.compared)
        outcomes = np.array([value for values in found.values() for value in values], np.float64)
        worst = 0.0 if self._options.compared == "success" else self._options.worst_reward
        return self._options.value((outcomes - worst) / (1 - worst))

    def _drawn(self, number: int, values: dict[int, float], count: int) -> list[int]:
        """The groups that are copied, in the order of drawing; the same whenever a batch is made again."""
        if self._options.refill == "left-out":
            return []
        rng, drawn, most = np.random.default_rng([self._seed, number, 3]), list[int](), self._options.max_copies
        left = {group: value if self._options.refill == "value" else 1.0 for group, value in values.items()}
        for _ in range(count):
            if not left:  # Every group has all the copies that it may have: the batch is smaller.
                break
            chances = np.array(list(left.values()))
            group = list(left)[int(rng.choice(len(left), p=chances / chances.sum()))]
            drawn.append(group)
            if most is not None and drawn.count(group) >= most:
                del left[group]
        return drawn

    def _weighed(self, kept: Sequence[int], copies: Sequence[int]) -> list[tuple[int, float]]:
        """Each group and each of its copies, with what it counts."""
        totals, seen, found = Counter([*kept, *copies]), Counter[int](), list[tuple[int, float]]()
        for group in (*kept, *copies):
            damping = self._options.damping
            weight = {"geometric": self._options.copy_gamma ** seen[group], "inverse-root": totals[group] ** -0.5}
            found.append((group, weight.get(damping, 1.0)))
            seen[group] += 1
        return found
