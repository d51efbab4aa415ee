"""Recorded turns as the answers to a harness that runs again: each request is answered as its dialogue was.

Parallel requests come in any order, so a dialogue is recognised by its messages, and its number does not count. A
request that was refused for its length left no turn: it is refused again. Left out: comparing the rest (`replay`).
"""

from collections.abc import Sequence
from dataclasses import replace

from palaestra.envs.arena.driving import settle
from palaestra.envs.core.state import Seat
from palaestra.envs.harness.machine import HarnessMachine
from palaestra.episode import Attempt, Ending, Episode, Message, is_turn
from palaestra.plain import to_plain
from palaestra.protocols import AgentTurn, TooLong


def turn_of_harness(machine: HarnessMachine, episode: Episode, cut: bool = False) -> str | None:
    """Return the recorded turn for one of the dialogues that are asked; None if none was recorded for any of them.

    With `cut`, it is the turn that was cut at the end of the episode; without, never that one.
    """
    attempt = episode.attempt
    ends_cut = is_cut(None, episode) and is_turn(attempt.messages[-1])
    while machine.is_open and (world := machine.world) is not None and machine.state is not None:
        for number, (messages, ends_attempt) in _recorded(machine, episode).items():
            place = len(world.open_talks[number].messages)
            was_cut = ends_cut and ends_attempt and place == len(messages) - 1
            if place < len(messages) and is_turn(messages[place]) and was_cut == cut:
                return AgentTurn(str(messages[place]["content"]), number)
        if not cut and world.open_talks and world.refused < attempt.refused:
            return TooLong("these messages were too long when this was recorded", next(iter(world.open_talks)))
        if machine.state.seats[None].turns >= attempt.turns - (ends_cut and not cut):
            return None
        settle(machine, machine.listen())  # Another of its requests was answered first.
    return None


def in_order_of(episode: Episode, replayed: Attempt) -> Attempt:
    """Return the replayed attempt with its dialogues and calls in the recorded order, if they are the same ones."""

    def arranged(attempt: Attempt) -> tuple[list[str], list[str]]:
        dialogues = replace(episode, attempt=attempt).dialogues
        calls = [repr(replace(call, seconds=0.0)) for call in attempt.calls]
        return sorted(repr(to_plain([*map(list, dialogue)])) for dialogue in dialogues), sorted(calls)

    recorded = episode.attempt
    if not recorded.dialogues or arranged(recorded) != arranged(replayed):
        return replayed
    return replace(replayed, messages=recorded.messages, dialogues=recorded.dialogues, calls=recorded.calls)


def is_cut(seat: Seat, episode: Episode) -> bool:
    """Return whether the seat was stopped from outside. Its last message may then be an unfinished turn."""
    ending = episode.ending
    return (ending is Ending.LENGTH_LIMIT and not episode.fault) or (ending is Ending.BROKEN and seat is None)


def _recorded(machine: HarnessMachine, episode: Episode) -> dict[int, tuple[Sequence[Message], bool]]:
    """Return the recorded messages of each dialogue that is asked, and whether they end the record.

    Each recorded dialogue is claimed once, by the longest first.
    """
    assert machine.world is not None
    free = [(messages, at) for at, (messages, _) in enumerate(episode.dialogues, start=1)]
    last, matched = len(free), dict[int, tuple[Sequence[Message], bool]]()
    for talk in sorted(machine.world.talks, key=lambda talk: (-len(talk.messages), talk.number)):
        claimed = next((each for each in free if [*each[0][: len(talk.messages)]] == talk.messages), None)
        if claimed is not None:
            free.remove(claimed)
            if talk.number in machine.world.open_talks:
                matched[talk.number] = claimed[0], claimed[1] == last
    return matched
