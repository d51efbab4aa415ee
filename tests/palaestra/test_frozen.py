"""Which nouns refuse a change as the program runs, and which leave that to the type checker."""

import copy
import dataclasses
import pickle

import pytest

from palaestra.episode import Attempt, Call, Ending, Episode, Event, Start, Status, Task
from palaestra.formats import CallParseError, ParsedCall
from palaestra.formats.parsed import Parsed

START = Start(task=1, seed=2)
TASK = Task("Ask")
CALL = Call("look", {}, "seen", Status.OK)
ATTEMPT = Attempt(TASK, (), None, (CALL,), 1)
HELD = (TASK, START, ATTEMPT, Episode(START, ATTEMPT, (), Ending.ANSWERED, 1.0, {}))
MADE = (CALL, Event(0, START), ParsedCall("look", {}), CallParseError("malformed", 3), Parsed("said"))


@pytest.mark.parametrize("noun", HELD, ids=lambda noun: type(noun).__name__)
def test_what_authors_and_rewards_hold_refuses_every_change(noun):
    for field in dataclasses.fields(noun):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(noun, field.name, None)


@pytest.mark.parametrize("noun", MADE, ids=lambda noun: type(noun).__name__)
def test_what_a_step_makes_in_numbers_is_plain_with_slots_and_equal_by_its_fields(noun):
    assert type(noun).__setattr__ is object.__setattr__
    assert not hasattr(noun, "__dict__")
    for twin in (dataclasses.replace(noun), copy.deepcopy(noun), pickle.loads(pickle.dumps(noun))):
        assert twin == noun
        assert twin is not noun


def test_equal_ones_hash_alike():
    assert hash(CallParseError("malformed", 3)) == hash(CallParseError("malformed", 3))
    assert len({Parsed("said"), Parsed("said"), Parsed("meant")}) == 2
