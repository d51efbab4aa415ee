"""The episodes that a forecast plays: tokens of each turn, tokens that tools return, and seconds that tools take.

They come from recorded episodes. Without records they are drawn around the medians of `AssumedEpisodes`.
Left out: rewards, and which episodes belong to one group.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from palaestra.episode import Episode, is_turn
from palaestra.errors import UsageError
from palaestra.trainers.validation import COUNT, NOT_NEGATIVE, check_fields

_CHARACTERS = 4
"""Characters of a token, where an episode was recorded without its tokens: a rule of thumb for English."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One turn of the agent, and what follows it."""

    sampled: int
    """Tokens that the agent samples."""
    tool_seconds: float
    """Seconds until its tools have answered."""
    tool_tokens: int
    """Tokens of the answer, which the engine must read."""


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One episode as a forecast sees it."""

    prompt: int
    """Tokens before the first turn."""
    turns: tuple[PlannedTurn, ...]

    @property
    def sampled(self) -> int:
        """Return the tokens that are sampled."""
        return sum(turn.sampled for turn in self.turns)

    @property
    def tokens(self) -> int:
        """Return the tokens of the whole row."""
        return self.prompt + sum(turn.sampled + turn.tool_tokens for turn in self.turns)

    def computed(self, group: int) -> int:
        """Return the tokens that a learner computes for the row, if `group` episodes share the prompt."""
        return self.tokens - self.prompt + math.ceil(self.prompt / group)


def measured(episodes: Iterable[Episode], tool_seconds: float | None = None) -> list[PlannedEpisode]:
    """Return recorded episodes as a forecast sees them. `tool_seconds` replaces the measured seconds of every tool."""
    planned = [_planned(episode, tool_seconds) for episode in episodes if episode.reward is not None]
    if not any(episode.turns for episode in planned):
        raise UsageError("no recorded episode has a turn; name a file that `palaestra eval --save` has written")
    return [episode for episode in planned if episode.turns]


@dataclass(frozen=True, slots=True)
class AssumedEpisodes:
    """Episodes of which there is no record: medians, around which single episodes are drawn with long tails."""

    prompt: Annotated[int, COUNT] = 1000
    """Tokens before the first turn, of every episode."""
    turns: Annotated[int, COUNT] = 4
    """Turns on average: each number from 1 to twice this, less 1, is equally likely."""
    sampled: Annotated[int, COUNT] = 400
    """Median of the tokens that the agent samples in a turn (log-normal, sigma 0.8)."""
    tool_tokens: Annotated[int, NOT_NEGATIVE] = 400
    """Tokens of what the tools return after a turn."""
    tool_seconds: Annotated[float, NOT_NEGATIVE] = 1.0
    """Median of the seconds until the tools of a turn have answered (log-normal, sigma 0.5)."""

    def __post_init__(self) -> None:
        check_fields(self)

    def draw(self, count: int, longest: int, seed: int = 0) -> list[PlannedEpisode]:
        """Return this many episodes. One ends where its row would be longer than `longest`."""
        if self.prompt >= longest:
            raise UsageError(f"a prompt of {self.prompt} tokens leaves no room in a row of {longest}")
        rng = random.Random(seed)
        return [self._episode(rng, longest) for _ in range(count)]

    def _episode(self, rng: random.Random, longest: int) -> PlannedEpisode:
        room, turns = longest - self.prompt, list[PlannedTurn]()
        for _ in range(rng.randint(1, 2 * self.turns - 1)):
            sampled = max(1, round(self.sampled * rng.lognormvariate(0.0, 0.8)))
            turns.append(
                PlannedTurn(min(sampled, room), self.tool_seconds * rng.lognormvariate(0.0, 0.5), self.tool_tokens)
            )
            room -= sampled + self.tool_tokens
            if room <= 0:
                break
        turns[-1] = PlannedTurn(turns[-1].sampled, 0.0, 0)
        return PlannedEpisode(self.prompt, tuple(turns))


def sample_episodes(episodes: Sequence[PlannedEpisode], count: int, seed: int = 0) -> list[PlannedEpisode]:
    """Return `count` episodes, drawn from these with repetition."""
    return random.Random(seed).choices(episodes, k=count)


def _planned(episode: Episode, tool_seconds: float | None) -> PlannedEpisode:
    """Return one recorded episode. Its last turn waits for no tool."""
    waits = _waits(episode) if tool_seconds is None else None
    lengths = [length for row in episode.rows for length in _runs(row.sampled.tolist())] or _spoken(episode)
    prompt, pairs = lengths[0] if lengths else 0, lengths[1:]
    turns = []
    for number, sampled in enumerate(pairs[::2]):
        tool_tokens = pairs[2 * number + 1] if 2 * number + 1 < len(pairs) else 0
        last = 2 * number + 2 >= len(pairs)
        wait = (tool_seconds or 0.0) if waits is None else waits[number] if number < len(waits) else 0.0
        turns.append(PlannedTurn(sampled, 0.0 if last else wait, tool_tokens))
    return PlannedEpisode(prompt, tuple(turns))


def _runs(sampled: Sequence[bool]) -> list[int]:
    """Return the lengths of what was read and what was sampled, in turn; what was read comes first and last."""
    runs = [len(list(group)) for _, group in groupby(sampled)]
    if sampled and sampled[0]:
        runs.insert(0, 0)
    return runs if len(runs) % 2 else [*runs, 0]


def _spoken(episode: Episode) -> list[int]:
    """Return the same lengths by characters, for an episode that was recorded without tokens."""
    runs = [0]
    for message in episode.attempt.messages:
        tokens = max(1, len(str(message.get("content") or "")) // _CHARACTERS)
        if is_turn(message) != (len(runs) % 2 == 0):
            runs.append(0)
        runs[-1] += tokens
    return runs if len(runs) % 2 else [*runs, 0]


def _waits(episode: Episode) -> list[float]:
    """Return the seconds that each turn waited for its calls, which run at the same time."""
    calls, waits = iter(episode.attempt.calls), list[float]()
    for message in episode.attempt.messages:
        if is_turn(message):
            waits.append(0.0)
        elif message["role"] == "tool" and waits and (call := next(calls, None)) is not None:
            waits[-1] = max(waits[-1], call.seconds)
    return waits
