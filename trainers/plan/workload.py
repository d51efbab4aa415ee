"""The episodes that a forecast plays: tokens of each turn, tokens that tools return, and seconds that tools take.

They come from recorded episodes. Without records they are drawn from a distribution that is stated in `assumed`.
Left out: rewards, and which episodes belong to one group.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from palaestra.episode import Episode, is_turn
from palaestra.errors import UsageError

_CHARACTERS = 4
"""Characters of a token, where an episode was recorded without its tokens: a rule of thumb for English."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One turn of the agent, and what follows it."""

    sampled: int
    """Tokens that the agent samples."""
    tool_seconds: float
    """Seconds until its tools have answered."""
    heard: int
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
        return self.prompt + sum(turn.sampled + turn.heard for turn in self.turns)


def measured(episodes: Iterable[Episode], tool_seconds: float | None = None) -> list[PlannedEpisode]:
    """Return recorded episodes as a forecast sees them. `tool_seconds` replaces the measured seconds of every tool."""
    found = [_planned(episode, tool_seconds) for episode in episodes if episode.reward is not None]
    if not any(episode.turns for episode in found):
        raise UsageError("no recorded episode has a turn; name a file that `palaestra eval --save` has written")
    return [episode for episode in found if episode.turns]


def assumed(
    count: int, *, prompt: int, turns: int, sampled: int, heard: int, tool_seconds: float, longest: int, seed: int = 0
) -> list[PlannedEpisode]:
    """Draw episodes with these medians: lengths are log-normal with a long tail (sigma 0.8), tool seconds too (0.5).

    An episode ends where its row would be longer than `longest`.
    """
    rng = random.Random(seed)

    def draw(median: float, sigma: float) -> float:
        return median * rng.lognormvariate(0.0, sigma)

    episodes = []
    for _ in range(count):
        room, played = longest - prompt, list[PlannedTurn]()
        for number in range(rng.randint(1, 2 * turns - 1)):
            turn = PlannedTurn(max(1, round(draw(sampled, 0.8))), draw(tool_seconds, 0.5), heard)
            if number and turn.sampled + turn.heard > room:
                break
            room -= turn.sampled + turn.heard
            played.append(turn)
        last = played[-1]
        played[-1] = PlannedTurn(min(last.sampled, longest - prompt), 0.0, 0)
        episodes.append(PlannedEpisode(prompt, tuple(played)))
    return episodes


def drawn(episodes: Sequence[PlannedEpisode], count: int, seed: int = 0) -> list[PlannedEpisode]:
    """Return `count` episodes, drawn from these with repetition."""
    return random.Random(seed).choices(episodes, k=count)


def _planned(episode: Episode, tool_seconds: float | None) -> PlannedEpisode:
    """Return one recorded episode. Its last turn waits for no tool."""
    waits = _waits(episode) if tool_seconds is None else None
    lengths = [length for row in episode.rows for length in _runs(row.sampled.tolist())] or _spoken(episode)
    prompt, pairs = lengths[0] if lengths else 0, lengths[1:]
    turns = []
    for number, sampled in enumerate(pairs[::2]):
        heard = pairs[2 * number + 1] if 2 * number + 1 < len(pairs) else 0
        last = 2 * number + 2 >= len(pairs)
        wait = (tool_seconds or 0.0) if waits is None else waits[number] if number < len(waits) else 0.0
        turns.append(PlannedTurn(sampled, 0.0 if last else wait, heard))
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
