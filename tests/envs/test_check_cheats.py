"""`check` lets cheats play: each that wins is named; and what they say to tools spares our own process."""

import os
import re
import typing

import flawed
import pytest
from checked import failed
from pydantic import BaseModel

from palaestra.envs import tool
from palaestra.envs.checks.cheats import CHEATS, arguments, crashing_calls
from palaestra.envs.checks.trials import Subject

NAMED = {
    flawed.Evaluating: "by a name in the tool's scope",
    flawed.Closed: "by an expression over all objects",
    flawed.Formatting: "by a field of a template",
    flawed.Running: "by a program over all objects",
    flawed.Containing: "every number or name seen",
    flawed.Lenient: "claim success",
    flawed.Repeating: "repeat the question",
    flawed.Absent: "do nothing",
    flawed.Undeclared: "claim success",
    flawed.Near: "guess nan",
    flawed.Relative: "guess inf, dressed",
    flawed.Flattered: "address the judge",
    flawed.Exiting: "a program that does nothing",
}


SLOW = (flawed.Closed, flawed.Running)


@pytest.mark.parametrize("cls", [pytest.param(cls, marks=pytest.mark.prove if cls in SLOW else ()) for cls in NAMED])
def test_a_cheat_that_wins_is_named(cls):
    said = failed(cls, "cheats fail")["cheats fail"]
    assert NAMED[cls] in said
    assert "declare the chance of guessing" in said


@pytest.mark.parametrize(
    ("cls", "name", "said"),
    [(flawed.Listing, "hedged answers fail", "hides the right one among others"),
     (flawed.Boxing, "hedged answers fail", "hides the right one among others"),
     (flawed.Mostly, "constant answers fail",
      r"always answer 'it is not'. succeeds in \d+%, and Mostly.chance is 0%, with 15% more for luck in 24 episodes"),
     (flawed.Paying, "cheats fail", r"was paid 0\.4 without success.*Paying\.ceiling is 0\.3"),
     (flawed.Blaming, "crashing is no escape", "ended an episode broken.*the interpreter died")],
)  # fmt: skip
def test_what_pays_other_than_a_right_answer_is_found(cls, name, said):
    assert re.search(said, failed(cls, name)[name], re.DOTALL)


def test_arguments_fit_every_kind_of_parameter():
    class Place(BaseModel):
        name: str
        at: tuple[float, float] | None = None

    class Many(flawed.Sound):
        @tool
        def go(
            self, way: typing.Literal["up", "down"], place: Place, names: list[str], count: int | str, sure: bool,
            more: str = "",
        ) -> str:  # fmt: skip
            return way

    values = Many._tools["go"].validate(arguments(Many._tools["go"].schema, "hello", 7))
    assert (values["way"], values["place"].name, values["names"], values["sure"]) == ("up", "hello", ["hello"], True)


def test_crashing_calls_are_accepted_by_the_tool_and_spare_this_process():
    texts = [given["text"] for given in crashing_calls(flawed.Running._tools["python"].schema)]
    assert len(texts) == len(set(texts)) > 10
    for text in texts:
        if "os._exit" in text or "os.kill" in text:
            exec(text, {})
            assert str(os.getpid()) in text
    numbers = [given["number"] for given in crashing_calls(flawed.Sound._tools["add"].schema)]
    assert 0 in numbers
    assert -(2**63) in numbers


def test_every_cheat_ends_its_episode():
    for chair in Subject("palaestra/TwoHop-v0").chairs():
        for name, cheat in CHEATS.items():
            event = chair.begin(1, 1)
            for _ in range(chair.max_turns):
                said = cheat(chair, chair.messages) if event.ending is None else None
                event = event if said is None else chair.say(said)
            assert said is None or event.ending is not None, name
