"""Recorded games run again, with all their seats: the game's own rules over what each seat said and its tools answered.

Seats are recorded as episodes of their own, and only together are they a game: what one seat hears is what another has
said, and who is rewarded the rounds decide. So `Gathering` collects the seats of each game, and `led` plays them again
by their texts, without models and without their tools. Where one seat was played against demonstrators
(`seat=NAME`), those play again, their tools too: they depend on task, seed and turn alone.

Left out: games that others wrote, whose inside is not open to us; episodes of one seat of ours (`replay`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

from palaestra.envs.games.game import Game
from palaestra.envs.games.match import Events, Match, Seat
from palaestra.envs.games.openers import one_game
from palaestra.envs.games.partners import Partnered
from palaestra.envs.records.replay import Difference, Diverged, Unfinished, outcome, same
from palaestra.episode import Ending, Episode, Event, Task
from palaestra.errors import UsageError
from palaestra.plain import to_plain
from palaestra.record import Record
from palaestra.registry import game_class

Placed = tuple[str, Record]
"""A record, with the words that name its place."""


class Gathering:
    """Records of games, handed out game by game once all seats are there."""

    def __init__(self) -> None:
        self._open: dict[str, list[dict[Seat, Placed]]] = {}

    def add(self, source: str, place: str, record: Record) -> list[Placed] | None:
        """A whole game, where this record was its last seat. Games are never made of several sources."""
        start, options = record.episode.start, to_plain(dict(record.options))
        seats: Sequence[Seat] = (None,) if "seat" in record.options else game_class(record.env_id).seats
        key = f"{source} {record.env_id} {options!r} {start.task} {start.seed}"
        games = self._open.setdefault(key, [])
        game = next((one for one in games if start.seat not in one), None)
        if game is None:
            game = {}
            games.append(game)
        game[start.seat] = (place, record)
        if set(game) != set(seats):
            return None
        games.remove(game)
        if not games:
            del self._open[key]
        return [game[seat] for seat in seats]

    @property
    def incomplete(self) -> list[Placed]:
        """The records whose games lack a seat."""
        return [placed for games in self._open.values() for game in games for placed in game.values()]


class GameStage:
    """Games to replay in, one for each id and its options, made when first needed."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Match, Game]] = {}

    def game(self, env_id: str, options: Mapping[str, Any]) -> tuple[Match, Game]:
        """The game of that id, and what drives it."""
        key = f"{env_id} {to_plain(dict(options))!r}"
        if key not in self._made:
            self._made[key] = one_game(env_id, options)
        return self._made[key]


def replay_game(match: Match, game: Game, episodes: Mapping[Seat, Episode]) -> Difference | None:
    """Run a game again; the first difference to its record, or None when every seat's episode came out identical.

    A BROKEN game is run as far as it got; it has no reward to compare.
    """
    try:
        events = led(match, game, episodes)
        for seat, episode in episodes.items():
            _compare(seat, episode, events[seat])
    except Diverged as diverged:
        return diverged.difference
    except Exception as error:  # Whatever an author's rounds raise, the record says that they once did not.
        return Difference("rounds", "a game that ended", f"{type(error).__name__}: {error}")
    finally:
        match.close()
    return None


def rescored(whole: Sequence[Placed], game_id: str, stage: GameStage) -> list[Record]:
    """The seats of a game with the rewards that the rounds of another game give for it. A BROKEN one stays without."""
    place, first = whole[0]
    if first.episode.reward is None:
        return [replace(record, lesson=None) for _, record in whole]
    match, game = stage.game(game_id, first.options)
    if "seat" not in first.options and set(game.seats) != {record.episode.start.seat for _, record in whole}:
        raise UsageError(f"{place} is of {first.env_id}, whose seats are not those of {game_id}: {game.seats}")
    try:
        events = led(match, game, {record.episode.start.seat: record.episode for _, record in whole})
    except Diverged as diverged:
        raise UsageError(
            f"{place} cannot be rewarded as {game_id}, which asks for other turns: {diverged.difference}"
        ) from diverged
    finally:
        match.close()
    found = []
    for _, record in whole:
        event = events[record.episode.start.seat]
        episode = replace(record.episode, reward=event.reward, parts=event.parts)
        if event.reward is None:
            episode = replace(episode, ending=Ending.BROKEN, fault=f"no reward: {event.fault}")
        found.append(replace(record, episode=episode, lesson=None))
    return found


def led(match: Match, game: Game, episodes: Mapping[Seat, Episode]) -> Events:
    """Play what was recorded again: how it ends for each seat. Diverged where a seat hears other words than it did."""
    first = next(iter(episodes.values()))
    game.use_tasks(_Only(first.attempt.task))
    free = match.seat if isinstance(match, Partnered) else ""
    game.outcomes = {
        seat or free: partial(outcome, outcomes=iter(episode.attempt.calls)) for seat, episode in episodes.items()
    }
    parts = {seat: _Part(str(seat or "the seat"), episode) for seat, episode in episodes.items()}
    try:
        return _led(match, parts)
    finally:
        game.outcomes = {}


class _Part:
    """What one seat heard and said, told again step by step."""

    def __init__(self, name: str, episode: Episode) -> None:
        self.name, self.episode = name, episode
        self.asked = False
        self._at = 0
        self._texts: deque[str] | None = None
        messages = episode.attempt.messages
        # Whoever was cut off was at its turn: what it had said of it stands last, and is no turn.
        self.culprit = episode.ending is Ending.LENGTH_LIMIT and not episode.fault
        self.cut = str(messages[-1]["content"]) if self.culprit and messages[-1]["role"] == "assistant" else ""

    def hear(self, event: Event) -> None:
        """Hold what the game tells against the record."""
        messages = self.episode.attempt.messages
        recorded = messages[self._at : self._at + len(event.messages)]
        same(f"message of {self.name}, after {self._at},", recorded, event.messages)
        self._at += len(event.messages)
        self.asked = event.ending is None
        if self._texts is None:  # Before its first turn a seat may have heard turns of an earlier attempt.
            said = [str(m["content"]) for m in messages[self._at :] if m["role"] == "assistant"]
            self._texts = deque(said[:-1] if self.cut else said)

    def say(self) -> str | None:
        """Its next turn, if it is asked and there is one."""
        if not self.asked or not self._texts:
            return None
        self.asked = False
        self._at += 1
        return self._texts.popleft()


def _led(match: Match, parts: Mapping[Seat, _Part]) -> Events:
    broken = next((part.episode for part in parts.values() if part.episode.ending is Ending.BROKEN), None)
    culprit = next((seat for seat, part in parts.items() if part.culprit), None)
    events = match.open({seat: part.episode.start for seat, part in parts.items()})
    while True:
        over = any(event.ending is not None for event in events.values())
        if over:
            return events
        for seat, event in events.items():
            parts[seat].hear(event)
        seat, text = next(
            ((seat, said) for seat, part in parts.items() if (said := part.say()) is not None), (None, None)
        )
        if text is not None:
            try:
                events = match.act({seat: text})
            except Unfinished:
                if broken is None:
                    raise
                return match.stop(Ending.BROKEN, fault=broken.fault)
        elif broken is not None:
            return match.stop(Ending.BROKEN, fault=broken.fault)
        elif any(part.culprit for part in parts.values()):
            return match.stop(Ending.LENGTH_LIMIT, culprit, parts[culprit].cut)
        else:
            asked = ", ".join(part.name for part in parts.values() if part.asked)
            ended = ", ".join(str(part.episode.ending) for part in parts.values())
            raise Diverged(Difference("ending", ended, f"the game goes on, and asks {asked}"))


def _compare(seat: Seat, episode: Episode, event: Event) -> None:
    who = f" of {seat}" if seat is not None else ""
    recorded, found = episode.attempt, event.attempt
    assert found is not None, "an ending carries the attempt"
    same(f"message{who}", recorded.messages, found.messages)
    if episode.ending is Ending.BROKEN:
        return
    for name in ("calls", "answer", "turns"):
        same(f"{name}{who}", getattr(recorded, name), getattr(found, name))
    for name in ("ending", "fault", "reward", "parts"):
        same(f"{name}{who}", getattr(episode, name), getattr(event, name))


class _Only(Sequence[Task]):
    """One task under every index: the recorded one, so that no file of tasks is needed and none is drawn."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __len__(self) -> int:
        return 2**62

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        return [self._task] if isinstance(index, slice) else self._task
