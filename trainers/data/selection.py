"""Select the episodes of a teacher to imitate: successful ones, without duplicates, the best of each source.

    played  ->  scored  ->  succeeded  ->  distinct  ->  the best k of each source

All functions are pure: the same records in the same order give the same selection, and the records that each rule drops
are counted. Not in this module: playing, and files.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, takewhile

from palaestra.episode import Status, is_turn
from palaestra.errors import ConfigError
from palaestra.record import Record

Score = Callable[[Record], float]
"""Function that scores an episode among those of its source; higher is better."""
_NAMES = ("source", "data_source")
"""Keys of `Task.data` that may name a task's source; the first one present is used."""


@dataclass(frozen=True, slots=True)
class SelectionCounts:
    """Numbers of episodes by outcome. The first is the sum of the others."""

    episodes: int = 0
    broken: int = 0
    """Episodes without a reward."""
    wrong: int = 0
    """Episodes below the required success."""
    duplicates: int = 0
    """Episodes with the same turns and prompt as an earlier one."""
    beyond_top_k: int = 0
    """Episodes that are not among the best of their source."""
    selected: int = 0

    def __add__(self, other: "SelectionCounts") -> "SelectionCounts":
        return SelectionCounts(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(SelectionCounts))
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected records in their original order, and the counts of all."""

    records: tuple[Record, ...]
    by_source: Mapping[str, SelectionCounts]
    """Counts by source, in the order of each source's first episode."""

    @property
    def counts(self) -> SelectionCounts:
        """Return the counts over all sources."""
        return sum(self.by_source.values(), SelectionCounts())


def reward(record: Record) -> float:
    """Return the reward of the episode; minus infinity if it has none."""
    return -math.inf if record.episode.reward is None else record.episode.reward


def calls_worked(record: Record) -> float:
    """Return the share of the episode's calls that succeeded; 0 without calls."""
    calls = record.episode.attempt.calls
    return sum(call.status is Status.OK for call in calls) / max(1, len(calls))


def shortness(record: Record) -> float:
    """Return 0 for every record, so that the tie-break prefers the shorter episode."""
    return 0.0


SCORES: Mapping[str, Score] = {"reward": reward, "calls-worked": calls_worked, "short": shortness}
"""Scores by the names that `palaestra collect --score` takes."""


def select(
    records: Iterable[Record],
    *,
    least_success: float = 1.0,
    top_k: int | None = None,
    score: Score = reward,
    fits: Callable[[Record], bool] = lambda record: True,
) -> Selection:
    """Select records by the rules, one after the other. If `top_k` is None, a source has no limit. A record for which
    `fits` returns False counts as wrong.
    """
    if not 0 <= least_success <= 1:
        raise ConfigError(f"least_success is {least_success}; it must be between 0 and 1")
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k is {top_k}; it must be at least 1, or none for no limit")
    all_records = list(records)
    scored = [record for record in all_records if record.episode.reward is not None]
    good = [record for record in succeeded(scored, least_success) if fits(record)]
    fresh = distinct(good)
    selected = fresh if top_k is None else best(fresh, top_k, score)
    stages = [Counter(map(source_of, stage)) for stage in (all_records, scored, good, fresh, selected)]
    by_source = {}
    for source in stages[0]:
        counts = [stage[source] for stage in stages]
        dropped = (before - after for before, after in pairwise(counts))
        by_source[source] = SelectionCounts(*[counts[0], *dropped, counts[-1]])
    return Selection(tuple(selected), by_source)


def source_of(record: Record) -> str:
    """Return the source of the task according to its data, or else the environment's id."""
    data = record.episode.attempt.task.data
    return next((str(data[name]) for name in _NAMES if data.get(name) not in (None, "")), record.env_id)


def succeeded(records: Iterable[Record], least: float) -> list[Record]:
    """Return the records with at least this success. An episode without a success value is dropped."""
    return [record for record in records if record.episode.parts.get("success", -math.inf) >= least]


def distinct(records: Iterable[Record]) -> list[Record]:
    """Keep the first of several episodes with the same prompt and the same agent turns.

    The prompt is everything before the agent's first turn. Tool results are not compared.
    """
    first_records: dict[tuple[object, ...], Record] = {}
    for record in records:
        first_records.setdefault(_spoken(record), record)
    return list(first_records.values())


def best(records: Sequence[Record], top_k: int, score: Score = reward) -> list[Record]:
    """Return the `top_k` best records of each source, in their original order.

    With equal scores the shorter episode wins (in sampled tokens; in characters if a source has episodes without
    tokens), then the earlier one.
    """
    by_source: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        by_source.setdefault(source_of(record), []).append(place)
    selected_places: list[int] = []
    for source, places in by_source.items():
        in_tokens = all(records[place].episode.rows for place in places)
        scores = {place: float(score(records[place])) for place in places}
        if any(math.isnan(value) for value in scores.values()):
            raise ConfigError(f"the score of an episode of {source!r} is no number; expected one for each episode")
        places.sort(key=lambda place: (-scores[place], _length(records[place], in_tokens), place))
        selected_places += places[:top_k]
    return [records[place] for place in sorted(selected_places)]


def _length(record: Record, in_tokens: bool) -> int:
    if in_tokens:
        return record.episode.sampled_tokens
    return sum(len(str(m.get("content"))) for m in record.episode.attempt.messages if is_turn(m))


def _spoken(record: Record) -> tuple[object, ...]:
    """Return a key made of all messages before the agent's first turn, and of its turns."""
    messages = record.episode.attempt.messages
    prompt = takewhile(lambda message: not is_turn(message), messages)
    turns = filter(is_turn, messages)
    contents = ((message["role"], message.get("content")) for message in (*prompt, *turns))
    return tuple((role, content if isinstance(content, str) else repr(content)) for role, content in contents)
