"""One episode stepped by hand, of one seat or several: turns can be taken back, left to a game's script, and recorded.

With `seat` among the options that seat of a game is played by hand, and its demonstrator plays the others; the record
is of all of them. Taking a turn back restores the snapshot that was taken before it. Where there is none, because a
toolkit has no snapshots or the turns were recorded ones, the episode is opened again and led by outcomes to where it
stood: no tool runs twice, but what earlier calls had left in a toolkit is gone then; `rebuilt` says so.

Environments of others have no snapshots: they are stepped to their end, and recorded there. Left out: asking somebody
for turns, and printing (`palaestra play`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palaestra.envs.arena.by_rule import spoken
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.openers import open_playable
from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.text_env import drawn
from palaestra.envs.core import branches
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.ending import merged_final
from palaestra.envs.core.machine import Machine, Reply
from palaestra.envs.core.state import Events, Seat
from palaestra.envs.records.replay import MAX_BY_RULE, Difference, Outcomes, drop, lead, starts_of, turns
from palaestra.envs.running.runner import wait_for
from palaestra.envs.running.work import Pending
from palaestra.episode import Attempt, Ending, Episode, Event, Message, Start, Task
from palaestra.errors import Broken, EnvironmentDefect, UsageError
from palaestra.record import Record
from palaestra.registry import demonstrator, is_game

_ENDED = "the episode has ended: /undo takes the last turn back, /reset begins another"


@dataclass(frozen=True, slots=True)
class Turn:
    """What a seat said, and where the episode stood before it, if that is known."""

    seat: Seat
    text: str
    stand: Snapshot | None = None


class ByHand:
    """An environment or game whose episode somebody steps."""

    def __init__(self, playable: Playable, env_id: str, options: Mapping[str, Any], seat: str | None = None) -> None:
        """With `seat`, that seat alone is played by hand."""
        if seat is not None and seat not in playable.seats:
            raise UsageError(f"seat is {seat!r}; expected one of {', '.join(map(repr, playable.seats))}")
        self.playable, self.env_id, self.options, self.own = playable, env_id, options, seat
        self.asked: Events = {}
        """Who is asked, with what is new to each."""
        self.ended: Events = {}
        """How it ended, for every seat."""
        self.turns: list[Turn] = []
        self.rebuilt = False
        """Whether toolkits were started anew when turns were taken back last, so that they hold nothing."""
        self._starts: Mapping[Seat, Start] = {}
        self._heard: dict[Seat, list[Message]] = {}

    @property
    def seat(self) -> Seat:
        """Whose turn it is; when the episode is over, the first seat."""
        return next((seat for seat in self.playable.seats if seat in self.asked), self.playable.seats[0])

    @property
    def event(self) -> Event:
        """The latest of that seat: what is new to it, or how it ended."""
        found = (self.ended or self.asked).get(self.seat)
        if found is None:
            raise UsageError(f"the environment failed: {_ENDED}")
        return found

    @property
    def machine(self) -> Machine:
        """What plays an environment of ours."""
        if not isinstance(self.playable, Machine):
            raise UsageError(
                f"{self.env_id} is somebody else's environment: it shows no task, "
                "cannot go back, and is judged, and can be saved, once it has ended"
            )
        return self.playable

    def messages(self, seat: Seat) -> Sequence[Message]:
        if not isinstance(self.playable, Machine):
            return self._heard[seat]
        return self._starts[seat].as_seen(self.attempt(seat).messages)

    def attempt(self, seat: Seat) -> Attempt:
        ended = self.ended[seat].attempt if seat in self.ended else None
        if ended is not None:
            return ended
        assert self.machine.state is not None, "it was opened"
        return self.machine.state.attempt(seat)

    def open(self, seed: int | None = None, task: int | None = None) -> Start:
        """Begin an episode; seed and task are drawn where none are given."""
        _, start = drawn(None, seed, task, self.playable.task_count)
        self._begin({seat: replace(start, seat=seat) for seat in self.playable.seats}, None)
        self._script_others()
        return start

    def load(self, records: Sequence[Record]) -> None:
        """Stand where a recorded episode, of all its seats, ended, or was cut off. The script plays seats that lack."""
        machine, episodes = self.machine, {one.episode.attempt.seat: one.episode for one in records}
        self._begin(starts_of(machine, episodes), records[0].episode.attempt.task)
        rule = None
        if len(episodes) < len(machine.seats):
            (self.own,), rule = episodes, demonstrator(self.env_id)
        said = (Turn(*turn) for turn in turns(machine, episodes, rule))
        try:
            self._lead(said, {seat: one.attempt for seat, one in episodes.items()})
        except Difference as error:
            raise UsageError(f"{self.env_id} is not what it was when this was recorded: {error}") from error

    def say(self, text: str) -> None:
        """Take the turn of the seat that is asked, and those that the script has after it.

        A turn whose reward raises is taken all the same, so that it can be taken back.
        """
        seat = self._asked_seat()
        try:
            stand = branches.take(self.machine)
        except UsageError:  # It has none.
            stand = None
        self._act(Turn(seat, text, stand))
        self._script_others()

    def script(self) -> str:
        """What the demonstrator would say now."""
        return self._spoken(self._asked_seat())

    def undo(self, count: int = 1) -> None:
        """Take turns by hand back, and what the script answered to them."""
        machine = self.machine
        by_hand = [place for place, turn in enumerate(self.turns) if not self._scripted(turn.seat)]
        if not 0 < count <= len(by_hand):
            raise UsageError(f"{count} turns cannot be taken back; {len(by_hand)} have been taken")
        kept, stand = self.turns[: by_hand[-count]], self.turns[by_hand[-count]].stand
        self.rebuilt = stand is None and bool(machine.spec.author.toolkits)
        if stand is None:
            attempts = {seat: self.attempt(seat) for seat in machine.seats}
            self._begin(self._starts, attempts[self.seat].task)
            self._lead(kept, attempts)
        else:
            release(machine)
            self.turns, self.ended, self.asked = kept, {}, branches.put(machine, stand)

    def closed(self) -> Events:
        """How it ended; where it goes on, how it would if the seat at its turn were cut off here."""
        if self.ended:
            return self.ended
        machine = self.machine
        if machine.state is not None and machine.state.failure is not None:
            raise machine.state.failure  # What the author's reward raised as the episode ended.
        seat = self._asked_seat()
        try:
            (twin,) = branches.fork(machine, 1, own_noise=False)
        except UsageError:
            return self._led_again(Machine(machine.spec), seat, self._final_now())
        try:
            return settle(twin, twin.stop(Ending.LENGTH_LIMIT, seat))
        finally:
            release(twin)

    def records(self) -> list[Record]:
        """The episodes of all seats; one that goes on is recorded as `closed` ends it."""
        found = []
        for seat, event in self.closed().items():
            assert event.attempt is not None and event.ending is not None, "an ending carries the attempt"
            episode = Episode(
                self._starts[seat], event.attempt, (), event.ending, event.reward, event.parts, event.fault, event.tools
            )
            found.append(Record(self.env_id, episode, self.options, agent="by hand"))
        return found

    def close(self) -> None:
        release(self.playable)
        self.playable.close()

    # Inside.

    def _begin(self, starts: Mapping[Seat, Start], task: Task | None) -> None:
        release(self.playable)
        self.turns, self.asked, self.ended = [], {}, {}
        self._starts, self._heard = starts, {seat: [] for seat in starts}
        opened = self.playable.open(starts, slots={}) if task is None else self.machine.open(starts, task)
        self._take(settle(self.playable, opened))
        broken = next((event.fault for event in self.ended.values() if event.ending is Ending.BROKEN), None)
        if broken is not None:
            raise Broken(broken)

    def _act(self, turn: Turn, settled: Callable[[Any, Reply], Events] = settle) -> None:
        self.turns.append(turn)
        self._heard[turn.seat].append({"role": "assistant", "content": turn.text})
        others = {seat: event for seat, event in self.asked.items() if seat != turn.seat}
        self.asked = {}  # Nobody is, where the author's code raises.
        events = settled(self.playable, self.playable.act(turn.seat, turn.text))
        self.asked = others
        self._take(events)

    def _take(self, events: Events) -> None:
        for seat, event in events.items():
            self._heard[seat] += event.messages
        if any(event.ending is not None for event in events.values()):
            self.asked, self.ended = {}, events
        else:
            self.asked |= events

    def _lead(self, turns: Iterable[Turn], attempts: Mapping[Seat, Attempt]) -> None:
        """Take turns whose calls have their recorded outcomes."""
        machine, outcomes = self.machine, Outcomes(attempts, live=True)
        machine.eager = False
        try:
            for turn in turns:
                self._act(turn, outcomes.settle)
        finally:
            machine.eager = True

    def _final_now(self) -> Mapping[str, Any]:
        """What the environment and its toolkits would declare if the episode ended here."""
        machine = self.machine
        assert machine.state is not None, "it was opened"
        takers: list[tuple[Seat, Any]] = [(None, machine.state.play)] if machine.spec.own_final else []
        takers += machine.kits.declaring()
        works = machine.kits.finals(takers, eager=True)
        if works:
            wait_for(Pending(works), machine.spec.name)
        found = [work.outcome() for work in works] if works else [one.final() for _, one in takers]
        return merged_final(machine.spec.owner, takers, found)

    def _led_again(self, twin: Machine, seat: Seat, final: Mapping[str, Any]) -> Events:
        """Another machine, led by outcomes alone to where `seat` is cut off."""
        episodes = {}
        for one, start in self._starts.items():
            ending = Ending.LENGTH_LIMIT if one == seat else Ending.TURN_LIMIT
            episodes[one] = Episode(start, replace(self.attempt(one), final=final), (), ending, None, {})
        try:
            return lead(twin, episodes)
        finally:
            drop(twin)

    def _script_others(self) -> None:
        for _ in range(MAX_BY_RULE):
            other = next(filter(self._scripted, self.asked), None)
            if other is None:
                return
            self._act(Turn(other, self._spoken(other)))
        raise EnvironmentDefect(f"the demonstrator of {self.env_id} speaks on and on; it never ends")

    def _scripted(self, seat: Seat) -> bool:
        return self.own is not None and seat != self.own

    def _spoken(self, seat: Seat) -> str:
        return spoken(demonstrator(self.env_id), self.machine, seat, self._starts[seat])

    def _asked_seat(self) -> Seat:
        if self.seat not in self.asked:
            raise UsageError(_ENDED)
        return self.seat


def open_by_hand(env_id: str, options: Mapping[str, Any]) -> ByHand:
    """Any environment or game, ours or somebody else's."""
    given, seat = dict(options), None
    if is_game(env_id):
        seat = given.pop("seat", None)
    return ByHand(open_playable(env_id, given), env_id, given, seat)
