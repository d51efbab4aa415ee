"""Choose tasks for a model: its pass rate on each task, three buckets of difficulty, and a set with a given histogram.

    episodes  ->  pass rates  ->  never and always are dropped  ->  hard, medium, easy  ->  matched to a target

The rule is that of arXiv 2510.11701, section 3.3: of eight episodes per task, at most a quarter pass if the task is
hard, and at least three quarters if it is easy; the target is the histogram of a stronger model. All functions are pure
functions over episodes. Not in this module: playing, and the file (`curated`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b

import numpy as np

from palaestra.episode import Episode
from palaestra.errors import ConfigError, UsageError

BUCKETS = ("hard", "medium", "easy")
OUTCOMES = ("never", *BUCKETS, "always", "incomplete")
"""Possible outcomes of a task. Only tasks in the buckets can give a gradient."""


@dataclass(frozen=True, slots=True)
class Rated:
    """A task, and the number of times that a model solved it."""

    task: int
    """Number of the task in the environment's split."""
    id: str
    prompt: str
    """Digest of the task's prompt, which identifies it."""
    passed: int
    scored: int
    """Number of episodes with a reward."""

    @property
    def bucket(self) -> str:
        """Return the outcome. A pass rate of exactly one quarter is hard, and of exactly three quarters is easy."""
        if self.passed in (0, self.scored):
            return "always" if self.passed else "never"
        return "hard" if 4 * self.passed <= self.scored else "easy" if 4 * self.passed >= 3 * self.scored else "medium"


@dataclass(frozen=True, slots=True)
class Curation:
    """The kept tasks in order, and the number of tasks of each outcome."""

    tasks: tuple[Rated, ...]
    outcomes: Mapping[str, int]
    """Number of tasks by outcome, before they were matched to a target."""

    @property
    def histogram(self) -> dict[str, int]:
        """Return the number of kept tasks in each bucket."""
        return histogram(self.tasks)


def curate(
    episodes: Iterable[Episode],
    *,
    samples: int = 8,
    least_success: float = 1.0,
    target: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Curation:
    """Keep the tasks that are solved sometimes: all of them, or as many as fit the target's histogram.

    A task with fewer than `samples` scored episodes is incomplete and dropped. An episode passes with `least_success`
    or more.
    """
    if samples < 2:
        raise ConfigError(f"samples is {samples}; with fewer than 2 episodes a task every pass rate is 0 or 1")
    rated = rate(episodes, least_success)
    whole = [rating for rating in rated if rating.scored >= samples]
    outcome_counts = Counter(rating.bucket for rating in whole) + Counter(incomplete=len(rated) - len(whole))
    fitting = [rating for rating in whole if rating.bucket in BUCKETS]
    chosen = fitting if target is None or not fitting else matched(fitting, target, seed)
    return Curation(tuple(chosen), {name: outcome_counts[name] for name in OUTCOMES})


def rate(episodes: Iterable[Episode], least_success: float = 1.0) -> list[Rated]:
    """Return the rating of each played task in the order of task numbers. BROKEN episodes are ignored."""
    ids_and_digests: dict[int, tuple[str, str]] = {}
    passed, scored_counts = Counter[int](), Counter[int]()
    for episode in episodes:
        number, task = episode.start.task, episode.attempt.task
        ids_and_digests.setdefault(number, (task.id, prompt_digest(task.prompt)))
        if episode.reward is not None:
            scored_counts[number] += 1
            passed[number] += episode.parts["success"] >= least_success
    return [
        Rated(number, *ids_and_digests[number], passed[number], scored_counts[number])
        for number in sorted(ids_and_digests)
    ]


def matched(rated: Sequence[Rated], target: Mapping[str, float], seed: int = 0) -> list[Rated]:
    """Draw as many of these tasks as possible, at random, so that each bucket has the target's share within one task.
    Return them in task order.
    """
    quota = shares(target)
    by_bucket = {name: [task for task in rated if task.bucket == name] for name in BUCKETS}
    total = min(math.floor(len(by_bucket[name]) / share) for name, share in quota.items() if share)
    if not total:
        empty = next(name for name, share in quota.items() if share and not by_bucket[name])
        raise UsageError(
            f"the target wants {float(quota[empty]):.0%} of the tasks to be {empty}, and none of the {len(rated)} that "
            f"are solved now and then is; expected some of each, or a target with {empty}=0"
        )
    counts = {name: math.floor(share * total) for name, share in quota.items()}
    for name in sorted(BUCKETS, key=lambda name: counts[name] - quota[name] * total)[: total - sum(counts.values())]:
        counts[name] += 1  # The bucket has enough tasks, because its size is an integer at or above the exact share.
    chosen = [
        by_bucket[name][place]
        for number, name in enumerate(BUCKETS)
        for place in np.random.default_rng([seed, number, 5]).choice(len(by_bucket[name]), counts[name], replace=False)
    ]
    return sorted(chosen, key=lambda rating: rating.task)


def histogram(rated: Iterable[Rated]) -> dict[str, int]:
    """Return the number of tasks in each bucket."""
    counts = Counter(rating.bucket for rating in rated)
    return {name: counts[name] for name in BUCKETS}


def prompt_digest(prompt: str) -> str:
    """Return a short digest of a prompt."""
    return blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def shares(target: Mapping[str, float]) -> dict[str, Fraction]:
    """Return the target as exact fractions that sum to 1: 0.2 is a fifth, not its nearest float."""
    wrong = [f"{name}={value}" for name, value in target.items() if name not in BUCKETS or not _is_share(value)]
    if wrong or not any(target.values()):
        raise UsageError(
            f"the target has {', '.join(wrong) or 'nothing above 0'}; expected a number for each of "
            f"{', '.join(BUCKETS)}, none below 0, such as hard=1 medium=2 easy=1"
        )
    exact = {name: Fraction(str(target.get(name, 0))) for name in BUCKETS}
    return {name: value / sum(exact.values()) for name, value in exact.items()}


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
