"""How tests play: calls as turns, slots that are begun, events that come when they come. No wait is a short one."""

import time

import pytest

from palaestra import Start, UsageError
from palaestra.formats import ParsedCall, hermes

PATIENCE = 60
"""Seconds that anything may take which a busy machine does late; what hangs does so for as long."""


def call(name, /, **arguments):
    return hermes.render([ParsedCall(name, arguments)])


def begun(arena):
    """An arena of one seat, with an episode in each slot: its task has the number of the slot."""
    for slot in range(arena.slots):
        arena.begin(slot, Start(task=slot, seed=slot))
    assert heard(arena, arena.slots).keys() == set(range(arena.slots))
    return arena


def seated(arena, task=0, seed=0, slots=(0, 1)):
    """Begin a game of two in these slots; what each slot is told first."""
    for slot, seat in zip(slots, arena.seats, strict=True):
        arena.begin(slot, Start(task, seed, seat=seat))
    return arena.recv(2, PATIENCE)


def heard(arena, count):
    """So many events, by slot."""
    found = {}
    while len(found) < count and (events := arena.recv(1, PATIENCE)):
        found |= {event.slot: event for event in events}
    assert len(found) == count, "what was begun or sent is not answered"
    return found


def becomes(found):
    """Wait until this is so; whether it is."""
    until = time.monotonic() + PATIENCE
    while not found() and time.monotonic() < until:
        time.sleep(0.005)
    return found()


def refused(said, use, *given, error=UsageError):
    """What is used so says this."""
    with pytest.raises(error, match=said):
        use(*given)
