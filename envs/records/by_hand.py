"""One episode stepped by hand, with one seat or several: turns can be taken back, given by a demonstrator, and
recorded.

If the options have `seat`, that seat of a game is played by hand, and its demonstrator plays the others; the record
holds all of them. Taking a turn back restores the snapshot before it. Without a snapshot (a toolkit has none, or the
turns were recorded), the episode is opened again and its turns are repeated with recorded outcomes: no tool runs twice,
but a toolkit loses the state that earlier calls left in it, and `rebuilt` is True.

Foreign environments have no snapshots: they are stepped to their end, and then recorded. Left out: asking a person for
turns, and printing (`palaestra play`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palaestra.envs.arena.by_rule import spoken
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.arena.openers import open_playable
from palaestra.envs.arena.opening import machine_of
from palaestra.envs.arena.playable import Playable
from palaestra.envs.arena.text_env import draw_start
from palaestra.envs.core import branches
from palaestra.envs.core.branches import Snapshot
from palaestra.envs.core.ending import merged_final
from palaestra.envs.core.machine import Machine, MachineReply
from palaestra.envs.core.state import Events, Seat
from palaestra.envs.records.replay import MAX_BY_RULE, Difference, Outcomes, lead, starts_of, turns
from palaestra.envs.running.runner import wait_for
from palaestra.envs.running.work import Pending
from palaestra.episode import Attempt, Ending, Episode, Event, Message, Start, Task
from palaestra.errors import Broken, EnvironmentDefect, UsageError
from palaestra.record import Record
from palaestra.registry import demonstrator, is_game

_ENDED = "the episode has ended: /undo takes the last turn back, /reset begins another"


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A turn of a seat, and the snapshot of the episode before the turn; None if there is no snapshot."""

    seat: Seat
    text: str
    stand: Snapshot | None = None


class ByHand:
    """Player of an environment or game, whose episode is stepped by hand."""

    def __init__(self, playable: Playable, env_id: str, options: Mapping[str, Any], seat: str | None = None) -> None:
        """Prepare to play all seats by hand, or only `seat` if it is not None."""
        if seat is not None and seat not in playable.seats:
            raise UsageError(f"seat is {seat!r}; expected one of {', '.join(map(repr, playable.seats))}")
        self.playable, self.env_id, self.options, self.hand_seat = playable, env_id, options, seat
        self.pending: Events = {}
        """Seats whose turn is expected, each with its latest event."""
        self.ended: Events = {}
        """Last event of every seat; empty while the episode runs."""
        self.turns: list[PlayedTurn] = []
        self.rebuilt = False
        """True where the last undo started the toolkits again, so that they lost their state."""
        self._starts: Mapping[Seat, Start] = {}
        self._messages: dict[Seat, list[Message]] = {}

    @property
    def seat(self) -> Seat:
        """Return the seat whose turn it is; the first seat when the episode is over."""
        return next((seat for seat in self.playable.seats if seat in self.pending), self.playable.seats[0])

    @property
    def event(self) -> Event:
        """Return the latest event of `seat`: its new messages, or the end of its episode."""
        event = (self.ended or self.pending).get(self.seat)
        if event is None:
            raise UsageError(f"the environment failed: {_ENDED}")
        return event

    @property
    def machine(self) -> Machine:
        """Return the machine; raise UsageError for a foreign environment, which has none."""
        if not isinstance(self.playable, Machine):
            raise UsageError(
                f"{self.env_id} is somebody else's environment: it shows no task, "
                "cannot go back, and is judged, and can be saved, once it has ended"
            )
        return self.playable

    def messages(self, seat: Seat) -> Sequence[Message]:
        if not isinstance(self.playable, Machine):
            return self._messages[seat]
        return self._starts[seat].as_seen(self.attempt(seat).messages)

    def attempt(self, seat: Seat) -> Attempt:
        ended = self.ended[seat].attempt if seat in self.ended else None
        if ended is not None:
            return ended
        assert self.machine.state is not None, "it was opened"
        return self.machine.state.attempt(seat)

    def open(self, seed: int | None = None, task: int | None = None) -> Start:
        """Begin an episode. If the seed or the task is None, it is drawn at random."""
        _, start = draw_start(None, seed, task, self.playable.task_count)
        self._begin({seat: replace(start, seat=seat) for seat in self.playable.seats}, None)
        self._script_others()
        return start

    def load(self, records: Sequence[Record]) -> None:
        """Repeat a recorded episode up to its recorded end or cut. The demonstrator plays the seats that have no
        record."""
        machine, episodes = self.machine, {record.episode.attempt.seat: record.episode for record in records}
        self._begin(starts_of(machine, episodes), records[0].episode.attempt.task)
        rule = None
        if len(episodes) < len(machine.seats):
            (self.hand_seat,), rule = episodes, demonstrator(self.env_id)
        recorded_turns = (PlayedTurn(*turn) for turn in turns(machine, episodes, rule))
        try:
            self._lead(recorded_turns, {seat: record.attempt for seat, record in episodes.items()})
        except Difference as error:
            raise UsageError(f"{self.env_id} is not what it was when this was recorded: {error}") from error

    def say(self, text: str) -> None:
        """Take the turn of the seat whose turn it is, and then the turns of the demonstrator.

        If the reward raises an error after a turn, the turn is recorded too, so that it can be taken back.
        """
        seat = self._pending_seat()
        try:
            stand = branches.take(self.machine)
        except UsageError:  # It has no snapshots.
            stand = None
        self._act(PlayedTurn(seat, text, stand))
        self._script_others()

    def script(self) -> str:
        """Return the turn that the demonstrator would take now."""
        return self._scripted_turn(self._pending_seat())

    def undo(self, count: int = 1) -> None:
        """Take back the last `count` turns by hand, and the turns that the demonstrator took after them."""
        machine = self.machine
        by_hand = [place for place, turn in enumerate(self.turns) if not self._is_scripted(turn.seat)]
        if not 0 < count <= len(by_hand):
            raise UsageError(f"{count} turns cannot be taken back; {len(by_hand)} have been taken")
        turns_before, stand = self.turns[: by_hand[-count]], self.turns[by_hand[-count]].stand
        self.rebuilt = stand is None and bool(machine.spec.author.toolkits)
        if stand is None:
            attempts = {seat: self.attempt(seat) for seat in machine.seats}
            self._begin(self._starts, attempts[self.seat].task)
            self._lead(turns_before, attempts)
        else:
            release(machine)
            self.turns, self.ended, self.pending = turns_before, {}, branches.put(machine, stand)

    def closed(self) -> Events:
        """Return the last event of every seat. While the episode runs, return those that would follow if the seat whose
        turn it is were cut off now."""
        if self.ended:
            return self.ended
        machine = self.machine
        if machine.state is not None and machine.state.failure is not None:
            raise machine.state.failure  # What the author's reward raised as the episode ended.
        seat = self._pending_seat()
        try:
            (twin,) = branches.fork(machine, 1, own_noise=False)
        except UsageError:
            return self._cut_off_twin(machine_of(machine.spec), seat, self._final_now())
        try:
            return settle(twin, twin.stop(Ending.LENGTH_LIMIT, seat))
        finally:
            release(twin)

    def records(self) -> list[Record]:
        """Return the records of all seats. An unfinished episode is recorded as if it were cut off now (see
        `closed`)."""
        records = []
        for seat, event in self.closed().items():
            assert event.attempt is not None and event.ending is not None, "an ending carries the attempt"
            episode = Episode(
                self._starts[seat], event.attempt, (), event.ending, event.reward, event.parts, event.fault, event.tools
            )
            records.append(Record(self.env_id, episode, self.options, agent="by hand"))
        return records

    def close(self) -> None:
        release(self.playable)
        self.playable.close()

    # Internals.

    def _begin(self, starts: Mapping[Seat, Start], task: Task | None) -> None:
        release(self.playable)
        self.turns, self.pending, self.ended = [], {}, {}
        self._starts, self._messages = starts, {seat: [] for seat in starts}
        opened = self.playable.open(starts, slots={}) if task is None else self.machine.open(starts, task)
        self._take(settle(self.playable, opened))
        broken = next((event.fault for event in self.ended.values() if event.ending is Ending.BROKEN), None)
        if broken is not None:
            raise Broken(broken)

    def _act(self, turn: PlayedTurn, settled: Callable[[Any, MachineReply], Events] = settle) -> None:
        self.turns.append(turn)
        self._messages[turn.seat].append({"role": "assistant", "content": turn.text})
        others = {seat: event for seat, event in self.pending.items() if seat != turn.seat}
        self.pending = {}  # No seat has the turn where the author's code raises.
        events = settled(self.playable, self.playable.act(turn.seat, turn.text))
        self.pending = others
        self._take(events)

    def _take(self, events: Events) -> None:
        for seat, event in events.items():
            self._messages[seat] += event.messages
        if any(event.ending is not None for event in events.values()):
            self.pending, self.ended = {}, events
        else:
            self.pending |= events

    def _lead(self, turns: Iterable[PlayedTurn], attempts: Mapping[Seat, Attempt]) -> None:
        """Take these turns; their calls are not run, but get the recorded outcomes."""
        machine, outcomes = self.machine, Outcomes(attempts, live=True)
        machine.eager = False
        try:
            for turn in turns:
                self._act(turn, outcomes.settle)
        finally:
            machine.eager = True

    def _final_now(self) -> Mapping[str, Any]:
        """Return the final state that the environment and its toolkits would declare if the episode ended now."""
        machine = self.machine
        assert machine.state is not None, "it was opened"
        takers: list[tuple[Seat, Any]] = [(None, machine.state.play)] if machine.spec.own_final else []
        takers += machine.kits.declaring()
        works = machine.kits.finals(takers, eager=True)
        if works:
            wait_for(Pending(works), machine.spec.name)
        finals = [work.outcome() for work in works] if works else [taker.final() for _, taker in takers]
        return merged_final(machine.spec.owner, takers, finals)

    def _cut_off_twin(self, twin: Machine, seat: Seat, final: Mapping[str, Any]) -> Events:
        """Repeat the episode in machine `twin` with recorded outcomes, cut `seat` off, and return the last events."""
        episodes = {}
        for other_seat, start in self._starts.items():
            ending = Ending.LENGTH_LIMIT if other_seat == seat else Ending.TURN_LIMIT
            episodes[other_seat] = Episode(start, replace(self.attempt(other_seat), final=final), (), ending, None, {})
        return lead(twin, episodes)

    def _script_others(self) -> None:
        for _ in range(MAX_BY_RULE):
            other = next(filter(self._is_scripted, self.pending), None)
            if other is None:
                return
            self._act(PlayedTurn(other, self._scripted_turn(other)))
        raise EnvironmentDefect(f"the demonstrator of {self.env_id} speaks on and on; it never ends")

    def _is_scripted(self, seat: Seat) -> bool:
        return self.hand_seat is not None and seat != self.hand_seat

    def _scripted_turn(self, seat: Seat) -> str:
        return spoken(demonstrator(self.env_id), self.machine, seat, self._starts[seat])

    def _pending_seat(self) -> Seat:
        if self.seat not in self.pending:
            raise UsageError(_ENDED)
        return self.seat


def open_by_hand(env_id: str, options: Mapping[str, Any]) -> ByHand:
    """Open any environment or game, palaestra's or a foreign one."""
    playable_options, seat = dict(options), None
    if is_game(env_id):
        seat = playable_options.pop("seat", None)
    return ByHand(open_playable(env_id, playable_options), env_id, playable_options, seat)
