"""Which tasks fit a model: how often it solves each of them, three buckets of difficulty, and a set with a histogram.

    episodes  ->  a pass rate a task  ->  never and always are dropped  ->  hard, medium, easy  ->  matched to a target

The rule of arXiv 2510.11701, section 3.3: eight episodes a task, hard up to a quarter of them, easy from three quarters
on; the target is a stronger model's own histogram. Pure functions over episodes. Left out: playing (any way that
episodes came about), and the file (`sampling.curated`).
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
"""What may become of a task; only the buckets hold tasks that can teach."""


@dataclass(frozen=True, slots=True)
class Rated:
    """A task, and how often a model has solved it."""

    task: int
    """Its number in the environment's split."""
    id: str
    prompt: str
    """Digest of its prompt, by which it is known again."""
    passed: int
    played: int
    """Episodes that could be scored."""

    @property
    def bucket(self) -> str:
        """How hard it is; the edges belong to hard and to easy."""
        if self.passed in (0, self.played):
            return "always" if self.passed else "never"
        return "hard" if 4 * self.passed <= self.played else "easy" if 4 * self.passed >= 3 * self.played else "medium"


@dataclass(frozen=True, slots=True)
class Curation:
    """The tasks that are kept, in their order, and how many there were of each kind."""

    kept: tuple[Rated, ...]
    found: Mapping[str, int]
    """Tasks by what became of them, before a target was matched."""

    @property
    def histogram(self) -> dict[str, int]:
        """The tasks that are kept, by bucket."""
        return histogram(self.kept)


def curate(
    episodes: Iterable[Episode],
    *,
    samples: int = 8,
    least_success: float = 1.0,
    target: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Curation:
    """Keep the tasks that are solved now and then, all of them or as many as fit the target's histogram.

    A task with fewer than `samples` scored episodes is incomplete, and not kept. An episode passes with `least_success`
    or more.
    """
    if samples < 2:
        raise ConfigError(f"samples is {samples}; with fewer than 2 episodes a task every pass rate is 0 or 1")
    rated = rate(episodes, least_success)
    whole = [one for one in rated if one.played >= samples]
    found = Counter(one.bucket for one in whole) + Counter(incomplete=len(rated) - len(whole))
    fitting = [one for one in whole if one.bucket in BUCKETS]
    kept = fitting if target is None or not fitting else matched(fitting, target, seed)
    return Curation(tuple(kept), {name: found[name] for name in OUTCOMES})


def rate(episodes: Iterable[Episode], least_success: float = 1.0) -> list[Rated]:
    """Each task that was played, in the order of their numbers; a BROKEN episode counts neither way."""
    known: dict[int, tuple[str, str]] = {}
    passed, played = Counter[int](), Counter[int]()
    for episode in episodes:
        number, task = episode.start.task, episode.attempt.task
        known.setdefault(number, (task.id, prompt_digest(task.prompt)))
        if episode.reward is not None:
            played[number] += 1
            passed[number] += episode.parts["success"] >= least_success
    return [Rated(number, *known[number], passed[number], played[number]) for number in sorted(known)]


def matched(rated: Sequence[Rated], target: Mapping[str, float], seed: int = 0) -> list[Rated]:
    """The most of these tasks whose histogram is the target's, within one task a bucket; drawn evenly in each."""
    asked = shares(target)
    there = {name: [one for one in rated if one.bucket == name] for name in BUCKETS}
    most = min(math.floor(len(there[name]) / share) for name, share in asked.items() if share)
    if not most:
        empty = next(name for name, share in asked.items() if share and not there[name])
        raise UsageError(
            f"the target wants {float(asked[empty]):.0%} of the tasks to be {empty}, and none of the {len(rated)} that "
            f"are solved now and then is; expected some of each, or a target with {empty}=0"
        )
    counts = {name: math.floor(share * most) for name, share in asked.items()}
    for name in sorted(BUCKETS, key=lambda name: counts[name] - asked[name] * most)[: most - sum(counts.values())]:
        counts[name] += 1  # Never more than there are, for that is a whole number too.
    kept = [
        there[name][place]
        for number, name in enumerate(BUCKETS)
        for place in np.random.default_rng([seed, number, 5]).choice(len(there[name]), counts[name], replace=False)
    ]
    return sorted(kept, key=lambda one: one.task)


def histogram(rated: Iterable[Rated]) -> dict[str, int]:
    """How many tasks are in each bucket."""
    found = Counter(one.bucket for one in rated)
    return {name: found[name] for name in BUCKETS}


def prompt_digest(prompt: str) -> str:
    """Short, and equal for equal prompts alone."""
    return blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def shares(target: Mapping[str, float]) -> dict[str, Fraction]:
    """The target as exact shares that add up to 1: 0.2 is a fifth, whatever its nearest float is."""
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
