"""Which episodes of a teacher are worth imitating: they succeeded, say something new, and are the best of their source.

    played  ->  scored  ->  succeeded  ->  distinct  ->  the best k of each source

Pure functions over records: the same records in the same order give the same selection, and what each rule left out is
counted. Left out: playing, and files.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from palaestra.episode import Status
from palaestra.errors import ConfigError
from palaestra.record import Record

Score = Callable[[Record], float]
"""How good an episode is among those of its source; higher is better."""
_NAMES = ("source", "data_source")
"""Keys of `Task.data` that name a task's source, the first that is there."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of some episodes: all but the first add up to the first."""

    played: int = 0
    broken: int = 0
    """Without a reward."""
    wrong: int = 0
    """Below the success that is asked for."""
    duplicates: int = 0
    """The same turns to the same prompt as one before."""
    beyond_top_k: int = 0
    """Not among the best of their source."""
    kept: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Counts)))


@dataclass(frozen=True, slots=True)
class Selection:
    """What is kept, in the order in which it was given, and what became of the rest."""

    records: tuple[Record, ...]
    by_source: Mapping[str, Counts]
    """Sources in the order of their first episode."""

    @property
    def counts(self) -> Counts:
        """Of all sources together."""
        return sum(self.by_source.values(), Counts())


def reward(record: Record) -> float:
    """The reward that the episode was given."""
    return -math.inf if record.episode.reward is None else record.episode.reward


def calls_worked(record: Record) -> float:
    """The share of its calls that worked; 0 where it made none."""
    calls = record.episode.attempt.calls
    return sum(call.status is Status.OK for call in calls) / max(1, len(calls))


def shortness(record: Record) -> float:
    """Equal for all: among equal ones the shorter is better."""
    return 0.0


SCORES: Mapping[str, Score] = {"reward": reward, "calls-worked": calls_worked, "short": shortness}
"""By the names that `palaestra collect --score` takes."""


def select(
    records: Iterable[Record],
    *,
    least_success: float = 1.0,
    top_k: int | None = None,
    score: Score = reward,
    fits: Callable[[Record], bool] = lambda record: True,
) -> Selection:
    """Apply the rules, one after the other. Without `top_k` there is no limit a source; what does not fit is wrong."""
    if not 0 <= least_success <= 1:
        raise ConfigError(f"least_success is {least_success}; it must be between 0 and 1")
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k is {top_k}; it must be at least 1, or none for no limit")
    played = list(records)
    scored = [record for record in played if record.episode.reward is not None]
    good = [record for record in succeeded(scored, least_success) if fits(record)]
    fresh = distinct(good)
    kept = fresh if top_k is None else best(fresh, top_k, score)
    stages = [Counter(map(source_of, stage)) for stage in (played, scored, good, fresh, kept)]
    by_source = {}
    for source in stages[0]:
        all_played, judged, right, new, taken = (stage[source] for stage in stages)
        by_source[source] = Counts(all_played, all_played - judged, judged - right, right - new, new - taken, taken)
    return Selection(tuple(kept), by_source)


def source_of(record: Record) -> str:
    """Where the task came from, as its data says, else the environment's id."""
    data = record.episode.attempt.task.data
    return next((str(data[name]) for name in _NAMES if data.get(name) not in (None, "")), record.env_id)


def succeeded(records: Iterable[Record], least: float) -> list[Record]:
    """Those whose success is at least that much; an episode without one is none."""
    return [record for record in records if record.episode.parts.get("success", -math.inf) >= least]


def distinct(records: Iterable[Record]) -> list[Record]:
    """Of those in which an agent took the same turns after the same prompt, the first.

    The prompt is all that stood there before the agent spoke. What tools said in between does not count.
    """
    found: dict[tuple[object, ...], Record] = {}
    for record in records:
        found.setdefault(_spoken(record), record)
    return list(found.values())


def best(records: Sequence[Record], top_k: int, score: Score = reward) -> list[Record]:
    """The `top_k` of each source, in the order in which they were given.

    Where scores are equal the shorter one is better (in sampled tokens; in letters where an agent without tokens is
    among them), then the earlier one.
    """
    by_source: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        by_source.setdefault(source_of(record), []).append(place)
    kept: list[int] = []
    for source, places in by_source.items():
        in_tokens = all(records[place].episode.rows for place in places)
        scores = {place: float(score(records[place])) for place in places}
        if any(math.isnan(value) for value in scores.values()):
            raise ConfigError(f"the score of an episode of {source!r} is no number; expected one for each episode")
        places.sort(key=lambda place: (-scores[place], _length(records[place], in_tokens), place))
        kept += places[:top_k]
    return [records[place] for place in sorted(kept)]


def _length(record: Record, in_tokens: bool) -> int:
    if in_tokens:
        return record.episode.sampled_tokens
    return sum(len(str(m.get("content"))) for m in record.episode.attempt.messages if m["role"] == "assistant")


def _spoken(record: Record) -> tuple[object, ...]:
    """Everything before the agent's first turn, and its turns."""
    messages = record.episode.attempt.messages
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    kept = [message for place, message in enumerate(messages) if place < first or message["role"] == "assistant"]
    return tuple((message["role"], _text(message.get("content"))) for message in kept)


def _text(content: object) -> str:
    return content if isinstance(content, str) else repr(content)
