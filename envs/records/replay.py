"""Replay of recorded episodes: the environment's rules run again on recorded outcomes, without tools, network or model.

A turn goes through the same parser, checks, clipping and reward as when it was played; results of tools and final
states of toolkits are taken from the record. So an identical replay proves that the record is complete, that the
environment has not changed, and that its reward depends on the Attempt alone. A reward with a judge calls the judge
again, so its replay is identical only if the judge answers the same.

A harness has no recorded outcomes: it runs again, and gets the recorded turns as answers.

A game is run with all of its seats. If demonstrators played the other seats (`seat=NAME`), they play again, and their
tools run: they depend only on task, seed and turn, unless the recorded seat changed a toolkit that they share. Left
out: foreign environments, whose internals are not visible, and which records are one game (`gathering`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from palaestra.envs.arena.by_rule import SeatRule, spoken
from palaestra.envs.arena.driving import release, settle
from palaestra.envs.core.calls import Prepared
from palaestra.envs.core.machine import Machine, MachineReply
from palaestra.envs.core.state import Dialogue, Events, Expected, Seat
from palaestra.envs.harness.machine import HarnessMachine
from palaestra.envs.records.rerun import in_order_of, is_cut, turn_of_harness
from palaestra.envs.running.runner import wait_for
from palaestra.envs.running.work import Pending
from palaestra.episode import Attempt, Call, Ending, Episode, Start, Status, is_turn

MAX_BY_RULE = 10_000
"""Maximum turns of demonstrators in a row: one that never lets another seat act must not hang a replay."""
_MAX_VALUE_CHARS = 200


class Difference(Exception):
    """The first place at which a replay differs from its record."""

    def __init__(self, where: str, recorded: Any, replayed: Any) -> None:
        self.where, self.recorded, self.replayed = where, recorded, replayed
        super().__init__(f"{where}: recorded {_short(recorded)}, replayed {_short(replayed)}")


def replay(machine: Machine, episodes: Mapping[Seat, Episode], rule: SeatRule | None = None) -> Difference | None:
    """Run an episode again, or all seats of a game; return the first difference to its record, or None.

    `rule` plays the seats that were not recorded. A BROKEN episode is run up to where it broke; its reward is not
    compared.
    """
    try:
        events = lead(machine, episodes, rule)
        for seat, episode in episodes.items():
            if episode.ending is not Ending.BROKEN:
                who, event = _of(seat), events[seat]
                if event.ending is Ending.BROKEN:
                    raise Difference(f"ending{who}", episode.ending, event.fault)
                assert event.attempt is not None
                replayed = in_order_of(episode, event.attempt)
                for name in ("calls", "answer", "turns", "final", "worlds", "dialogues", "refused", "unfollowed"):
                    same(name + who, getattr(episode.attempt, name), getattr(replayed, name))
                for name in ("ending", "fault", "reward", "parts"):
                    same(name + who, getattr(episode, name), getattr(event, name))
    except Difference as difference:
        return difference
    except Exception as error:  # The author's code did not raise when this was recorded.
        error_text = f"{type(error).__name__}: {error}"
        if machine.spec.solo:
            return Difference("reward", episodes[None].reward, error_text)
        return Difference("rounds", "a game that ended", error_text)
    return None


def lead(machine: Machine, episodes: Mapping[Seat, Episode], rule: SeatRule | None = None) -> Events:
    """Play the recorded turns to the end, or to where a BROKEN episode broke. Raise Difference if messages differ.

    The episode is dropped at the end, and the machine can play another.
    """
    first = next(iter(episodes.values()))
    broken = first.ending is Ending.BROKEN
    attempts = {seat: episode.attempt for seat, episode in episodes.items()}
    outcomes = Outcomes(attempts, rule is not None, broken)
    machine.eager = False
    try:
        events = outcomes.settle(machine, machine.open(starts_of(machine, episodes), first.attempt.task))
        for seat, text in turns(machine, episodes, rule):
            events = outcomes.settle(machine, machine.act(seat, text))
        if machine.is_open and (reply := _cut_off(machine, episodes)) is not None:
            events = outcomes.settle(machine, reply)
        assert machine.state is not None
        for seat, attempt in attempts.items():
            replayed = in_order_of(episodes[seat], machine.state.attempt(seat)).messages
            recorded = attempt.messages
            # Where one seat broke a game, another may have spoken before, or not.
            same(f"message{_of(seat)}", recorded[: len(replayed)] if broken or machine.is_open else recorded, replayed)
        if machine.is_open:
            seats = ", ".join(map(str, machine.pending_events))
            state_text = "the episode goes on" if machine.spec.solo else f"the game goes on, and asks {seats}"
            raise Difference("ending", ", ".join(str(episode.ending) for episode in episodes.values()), state_text)
        return events
    finally:
        _drop(machine, rule is not None)


def starts_of(machine: Machine, episodes: Mapping[Seat, Episode]) -> dict[Seat, Start]:
    """Return a start for every seat; seats that were not recorded have no prefix."""
    first = next(iter(episodes.values())).start
    return {
        seat: replace(episodes[seat].start, seat=seat) if seat in episodes else replace(first, seat=seat, prefix=())
        for seat in machine.seats
    }


def turns(machine: Machine, episodes: Mapping[Seat, Episode], rule: SeatRule | None) -> Iterator[tuple[Seat, str]]:
    """Yield turns while the machine takes them: recorded ones, and turns of `rule` for seats that were not recorded."""
    ruled, first = 0, next(iter(episodes.values()))
    while machine.state is not None and machine.is_open:
        turn: tuple[Seat, str] | None = None
        for seat, seat_state in machine.state.seats.items():
            if seat_state.left and seat not in episodes and rule is not None and ruled < MAX_BY_RULE:
                turn, ruled = (seat, spoken(rule, machine, seat, first.start)), ruled + 1
                break
            if seat_state.left and turn is None and seat in episodes:
                if isinstance(machine, HarnessMachine):
                    text = turn_of_harness(machine, episodes[seat])
                else:
                    text = _recorded_turn(seat_state, episodes[seat])
                turn, ruled = (None, ruled) if text is None else ((seat, text), 0)
        if turn is None:
            return
        yield turn


def _recorded_turn(state: Dialogue, episode: Episode) -> str | None:
    """Return the recorded turn that follows; None if none was recorded."""
    attempt = episode.attempt
    place = len(state.messages) - len(state.start.prefix)
    end = len(attempt.messages) - is_cut(attempt.seat, episode)
    message = attempt.messages[place] if place < end else {"role": ""}
    return str(message["content"]) if is_turn(message) else None


class Outcomes:
    """Recorded outcomes of jobs, which are used instead of running them; only rewards are computed again."""

    def __init__(self, attempts: Mapping[Seat, Attempt], live: bool = False, broken: bool = False) -> None:
        """`attempts` are the recorded ones. If `live`, toolkits start and close. If `broken`, the episode breaks where
        the recorded outcomes end."""
        self.attempts, self.live, self.broken = attempts, live, broken

    def settle(self, machine: Machine, reply: MachineReply) -> Events:
        """Return the events of a reply, with outcomes of its jobs from the record. The machine must not be `eager`."""
        while isinstance(reply, Pending):
            reply = machine.resume(self._answered(reply, reply.about))
        if not self.live:
            machine.aside.clear()
        return settle(machine, reply)

    def _answered(self, pending: Pending, expected: Expected) -> Pending:
        """Return the pending jobs with their recorded outcomes."""
        state, works, any_seat = expected.state, pending.works, next(iter(self.attempts.values()))
        assert state is not None
        if expected.role == "calls" and expected.seat in self.attempts:
            calls = self.attempts[expected.seat].calls[len(state.seats[expected.seat].calls) :]
            if len(calls) < len(expected.items):
                return self._none_left(pending, "calls", "no further call", _call_text(expected.items[len(calls)]))
            items = [_outcome(item, call) for item, call in zip(expected.items, calls, strict=False)]
            return Pending((), expected._replace(items=items))
        if expected.role == "user" and expected.seat in self.attempts:
            dialogue, recorded = state.seats[expected.seat], self.attempts[expected.seat].messages
            place = len(dialogue.messages) - len(dialogue.start.prefix)
            if self.broken and place >= len(recorded):
                return self._none_left(pending, "user", "no further reply", "a turn without a call")
            reply = recorded[place] if place < len(recorded) else {}
            if reply.get("role") == "user" and (state.course is None or reply.get("name") == "user"):
                works[0].value = reply["content"]
            return pending
        if expected.role == "asked":  # A harness runs again; a broken one is not awaited again.
            if self.broken and state.seats[None].turns >= any_seat.turns:
                works[0].late = True
            else:
                wait_for(pending)
            return pending
        if expected.role in ("world", "final"):
            works[0].value = any_seat.final
            if expected.role == "world" and state.course is not None:
                if len(any_seat.worlds) == len(state.course.worlds):
                    return self._none_left(pending, "worlds", "no further one", "another round")
                works[0].value = any_seat.worlds[len(state.course.worlds)]
            return Pending(works[:1], expected._replace(items=[(None, state.play)]))
        if expected.role == "end" and not self.live:
            reward_item, closings = expected.items
            pending = Pending(works[: len(works) - len(closings)], expected._replace(items=(reward_item, ())))
        if pending.works and (self.live or expected.role != "start"):
            wait_for(pending)
        return pending

    def _none_left(self, pending: Pending, where: str, recorded: str, replayed: str) -> Pending:
        """Mark the job as late if the recorded episode is BROKEN: this job broke it. Otherwise raise Difference."""
        if not self.broken:
            raise Difference(where, recorded, replayed)
        pending.works[0].late = True
        return pending


def _drop(machine: Machine, live: bool) -> None:
    """Drop the episode. If `live`, release its toolkits; else they never started, and are only forgotten."""
    machine.eager = True
    if live:
        release(machine)
        return
    if machine.is_open:
        machine.kits.instances = None  # They never started, and are not closed.
    machine.discard()
    machine.aside.clear()


def same(where: str, recorded: Any, replayed: Any) -> None:
    """Raise Difference if two values differ; in sequences, at the first different place."""
    if recorded == replayed:
        return
    if isinstance(recorded, Sequence) and isinstance(replayed, Sequence) and not isinstance(recorded, str):
        for place, (recorded_item, other) in enumerate(zip(recorded, replayed, strict=False)):
            if recorded_item != other:
                raise Difference(f"{where} {place}", recorded_item, other)
        recorded, replayed = f"{len(recorded)} of them", f"{len(replayed)} of them"
    raise Difference(where, recorded, replayed)


def _outcome(item: Prepared | Call, recorded: Call) -> Call:
    """Return the recorded call if it matches the replayed one, else raise Difference.

    Old records hold only the arguments that the agent wrote.
    """
    if isinstance(item, Call):
        same("a refused call", recorded, item)
        return recorded
    call_key = (item.tool.name, item.arguments, item.arguments if item.written is None else item.written)
    if recorded.written is not None:
        fits = (recorded.name, recorded.arguments, recorded.written) == call_key
    else:
        fits = (recorded.name, recorded.arguments) == (call_key[0], call_key[2])
    if not fits:
        raise Difference("a call", recorded, _call_text(item))
    if recorded.status is Status.BAD_CALL:
        raise Difference("a call", recorded, "the environment now accepts it")
    return recorded


def _call_text(item: Prepared | Call) -> str:
    return f"{item.name if isinstance(item, Call) else item.tool.name}({dict(item.arguments)})"


def _cut_off(machine: Machine, episodes: Mapping[Seat, Episode]) -> MachineReply | None:
    """Stop an episode without further turns as its record says; return None if it was not ended from outside."""
    for seat, episode in episodes.items():
        if is_cut(seat, episode):
            last = episode.attempt.messages[-1]
            text = last["content"] if last["role"] == "assistant" else ""
            if isinstance(machine, HarnessMachine):
                text = turn_of_harness(machine, episode, cut=True) or ""
            return machine.stop(episode.ending, seat, text, episode.fault)
        if episode.ending is Ending.BROKEN:
            return machine.stop(Ending.BROKEN, None, "", episode.fault)
    return None


def _of(seat: Seat) -> str:
    return "" if seat is None else f" of {seat}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
